//! Packed weights in and out.

use super::*;
use crate::backend::forms::{PAIR_ROWS, UNIT_COLUMNS};
use crate::backend::{BackendError, Form};

/// Threads that pack `rows` rows, rounded up to pairs of tiles, one group of columns each.
fn groups(rows: usize, inner: usize, columns: usize) -> usize {
    rows.next_multiple_of(PAIR_ROWS) * (inner / columns)
}

kernels! { device; "packed.cu":
    /// Rows `tokens[0..rows]` of a packed weight as bf16 `[rows, inner]`; zeros for an id outside
    Gather [gather_int8 gather_int4 gather_int5 gather_int6 gather_group4 gather_nvfp4] (
        dst: Ptr("bf16*"), w: Ptr("const unsigned char*"), tokens: Ptr("const u32*"), out: u32, inner: u32, detail: u32,
        rows: u32,
    )
    grid [rows, 1, 1], threads 256, shared 0;

    /// A packed weight as bf16 `[out, inner]`, a warp a unit
    Unpack [unpack_int8 unpack_int4 unpack_int5 unpack_int6 unpack_group4 unpack_nvfp4] (
        dst: Ptr("bf16*"), w: Ptr("const unsigned char*"), out: u32, inner: u32, detail: u32,
    )
    grid [up(inner / UNIT_COLUMNS, 8), up(out, PAIR_ROWS), 1], threads 256, shared 0;

    /// Pairs of tiles of gate and up in turns become the two that hold their rows in eights, in place: half-word i of the
    /// `bytes` bytes that both have at `first`, and so on `units` times, is what `from[i]` was
    TakeTurns [take_turns] (
        w: Ptr("unsigned char*"), from: Ptr("const u16*"), first: u32, bytes: u32, pair_bytes: u32, units: u32, couples: u32,
    )
    grid [units, couples, 1], threads 256, shared 2 * bytes;

    /// bf16 rows `[rows, inner]` as int8, a thread 128 columns; `bad` is set where a value is not finite
    PackInt8 [pack_int8] (
        dst: Ptr("unsigned char*"), src: Ptr("const bf16*"), rows: u32, inner: u32, bad: Ptr("u32*"),
    )
    grid [up(groups(rows, inner, 128), 128), 1, 1], threads 128, shared 0;

    /// The same as int4, int5 or int6, a thread 32 columns
    PackPlanes [pack_int4 pack_int5 pack_int6] (
        dst: Ptr("unsigned char*"), src: Ptr("const bf16*"), rows: u32, inner: u32, bad: Ptr("u32*"),
    )
    grid [up(groups(rows, inner, 32), 128), 1, 1], threads 128, shared 0;
}

pub(super) fn detail(form: Form) -> usize {
    form.row().map_or(0, |row| row.detail)
}

/// The symbol of a row that `verb` names for a form, and the form's detail.
fn of_form(verb: &str, form: Form, symbols: &[&'static str]) -> Result<(&'static str, usize)> {
    let symbol = symbols.iter().find(|symbol| symbol.strip_prefix(verb) == Some(form.name()));
    match symbol {
        Some(symbol) => Ok((symbol, detail(form))),
        None => Err(BackendError::Unsupported(format!("no kernel {verb}{} for weights in that form", form.name()))),
    }
}

/// # Safety
/// See the module.
pub unsafe fn pack(d: &dyn Driver, form: Form, params: PackInt8) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        if form == Form::Int8 {
            return params.launch(d);
        }
        let PackInt8 { dst, src, rows, inner, bad } = params;
        let (symbol, _) = of_form("pack_", form, PackPlanes::SYMBOLS)?;
        PackPlanes { dst, src, rows, inner, bad }.launch_as(d, symbol)
    }
}

/// Sets `params.detail`.
///
/// # Safety
/// See the module.
pub unsafe fn unpack(d: &dyn Driver, form: Form, params: Unpack) -> Result<()> {
    let (symbol, detail) = of_form("unpack_", form, Unpack::SYMBOLS)?;
    // SAFETY: the caller's.
    unsafe { Unpack { detail, ..params }.launch_as(d, symbol) }
}

/// Sets `params.detail`.
///
/// # Safety
/// See the module.
pub unsafe fn gather(d: &dyn Driver, form: Form, params: Gather) -> Result<()> {
    let (symbol, detail) = of_form("gather_", form, Gather::SYMBOLS)?;
    // SAFETY: the caller's.
    unsafe { Gather { detail, ..params }.launch_as(d, symbol) }
}
