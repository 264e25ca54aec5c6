//! Rows in 8 bits, for products of prefill in fp8.

kernels! { "fp8.cu", device:
    /// bf16 rows `[rows, n]` as e4m3 and a scale per row: `src = dst · scale`, the largest value of a row 448; rows of zeros, and of values up to 1e-30, are zeros with the scale 0
    NarrowRows [narrow_rows] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), src: Ptr("const bf16*"), n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// What `gate_rows` makes of rows in bf16, as `narrow_rows` makes it of those
    NarrowGated [narrow_gated] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), o: Ptr("const float*"), ldo: u32, norm: Ptr("const float*"),
        eps: f32, gate: Ptr("const bf16*"), ldg: u32, n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// What `swiglu_rows` makes of rows in bf16, as `narrow_rows` makes it of those
    NarrowSwiglu [narrow_swiglu] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), gu: Ptr("const bf16*"), inter: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;
}
