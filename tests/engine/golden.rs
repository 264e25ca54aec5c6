//! Golden data on the CPU, within the budgets of `tests/fixtures/README.md`. `SALA_FIXTURES=DIR` replays another folder.

use std::path::PathBuf;

use sala_chat::backend::cpu::Cpu;
use sala_chat::lab::golden::replay;

#[test]
fn every_golden_tensor_is_within_its_budget_on_the_cpu() {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let dir = std::env::var_os("SALA_FIXTURES").map_or(own, PathBuf::from);
    let checks = replay(&dir, &mut Cpu::new()).unwrap();
    for check in &checks {
        println!("{}", check.line());
    }
    let bad: Vec<_> = checks.iter().filter(|c| c.ok != Some(true)).collect();
    assert!(bad.is_empty(), "missed: {bad:#?}");
    for fixture in [
        "ops/rope",
        "ops/sparse real",
        "tiny-mixed",
        "tiny-real-sparse",
        "eagle3/tiny",
        "eagle3/asym",
        "eagle3/window",
        "eagle3/variant_norm_before_residual",
        "eagle3/variant_fc_norm",
        "eagle3/variant_norm_output",
        "eagle3/wide",
        "eagle3/lightning",
    ] {
        let of_it = format!("{fixture} ");
        assert!(checks.iter().any(|c| c.name.starts_with(&of_it)), "{fixture} was not replayed");
    }
}
