// Products of 1..16 rows with a weight in the form int5 (packed.cuh), inner a multiple of 128.
#include "skinny_packed.cuh"

// 1..8 and 9..16 rows.
#define RUN(groups, epilogue) skinny<groups, epilogue>(Packed<Int5>(w, inner, detail), SKINNY_CALL)
KERNEL(REGISTERS_80, 1) int5_store_8(SKINNY_ARGS) { RUN(1, STORE); }
KERNEL(REGISTERS_96, 1) int5_store_16(SKINNY_ARGS) { RUN(2, STORE); }
KERNEL(REGISTERS_80, 1) int5_swiglu_8(SKINNY_ARGS) { RUN(1, SWIGLU); }
KERNEL(REGISTERS_96, 1) int5_swiglu_16(SKINNY_ARGS) { RUN(2, SWIGLU); }
KERNEL(REGISTERS_80, 1) int5_add_8(SKINNY_ARGS) { RUN(1, ADD); }
KERNEL(REGISTERS_96, 1) int5_add_16(SKINNY_ARGS) { RUN(2, ADD); }
KERNEL(REGISTERS_80, 1) int5_logits_8(SKINNY_ARGS) { RUN(1, LOGITS); }
KERNEL(REGISTERS_96, 1) int5_logits_16(SKINNY_ARGS) { RUN(2, LOGITS); }
