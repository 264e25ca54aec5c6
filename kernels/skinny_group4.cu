// Products of 1..16 rows with a weight in the form group4 (packed.cuh), inner a multiple of 128.
#include "skinny_packed.cuh"

// 1..8 and 9..16 rows.
#define RUN(groups, epilogue)                                                                        \
    do {                                                                                             \
        if (detail == 2) skinny<groups, epilogue>(Packed<Groups<true>>(w, inner, 2), SKINNY_CALL);   \
        else skinny<groups, epilogue>(Packed<Group4>(w, inner, detail), SKINNY_CALL);                \
    } while (0)
KERNEL(REGISTERS_80, 1) group4_store_8(SKINNY_ARGS) { RUN(1, STORE); }
KERNEL(REGISTERS_96, 1) group4_store_16(SKINNY_ARGS) { RUN(2, STORE); }
KERNEL(REGISTERS_80, 1) group4_swiglu_8(SKINNY_ARGS) { RUN(1, SWIGLU); }
KERNEL(REGISTERS_96, 1) group4_swiglu_16(SKINNY_ARGS) { RUN(2, SWIGLU); }
KERNEL(REGISTERS_80, 1) group4_add_8(SKINNY_ARGS) { RUN(1, ADD); }
KERNEL(REGISTERS_96, 1) group4_add_16(SKINNY_ARGS) { RUN(2, ADD); }
KERNEL(REGISTERS_80, 1) group4_logits_8(SKINNY_ARGS) { RUN(1, LOGITS); }
KERNEL(REGISTERS_96, 1) group4_logits_16(SKINNY_ARGS) { RUN(2, LOGITS); }
