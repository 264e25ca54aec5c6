// Products of 1..16 rows with a weight in the form int8 (packed.cuh), inner a multiple of 128.
#include "skinny_packed.cuh"

// 1..8 and 9..16 rows.
#define RUN(groups, epilogue) skinny<groups, epilogue>(Packed<Int8>(w, inner, detail), SKINNY_CALL)
KERNEL(256, 1) int8_store_8(SKINNY_ARGS) { RUN(1, STORE); }
KERNEL(256, 1) int8_store_16(SKINNY_ARGS) { RUN(2, STORE); }
KERNEL(256, 1) int8_swiglu_8(SKINNY_ARGS) { RUN(1, SWIGLU); }
KERNEL(256, 1) int8_swiglu_16(SKINNY_ARGS) { RUN(2, SWIGLU); }
KERNEL(256, 1) int8_add_8(SKINNY_ARGS) { RUN(1, ADD); }
KERNEL(256, 1) int8_add_16(SKINNY_ARGS) { RUN(2, ADD); }
KERNEL(256, 1) int8_logits_8(SKINNY_ARGS) { RUN(1, LOGITS); }
KERNEL(256, 1) int8_logits_16(SKINNY_ARGS) { RUN(2, LOGITS); }
