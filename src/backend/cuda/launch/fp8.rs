//! Rows in 8 bits, for products of prefill in fp8.

kernels! { "fp8.cu", device:
    /// bf16 rows `[rows, n]` as e4m3 and a scale per row: `src = dst · scale`, the largest value of a row 448; rows of zeros, and of values up to 1e-30, are zeros with the scale 0
    NarrowRows [narrow_rows] (
        dst: Ptr("unsigned char*"), scales: Ptr("float*"), src: Ptr("const bf16*"), n: u32, rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;
}
