//! The figures of one context, as JSON and as lines of the table.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::sequences::Beside;
use super::speculation::Speculation;
use super::{ROUND_DRAFTS, ROUND_TOKENS};
use crate::engine::protocol::MemoryInfo;

#[derive(Clone, Debug, Serialize)]
pub(super) struct VerifyTime {
    pub(super) rows: usize,
    pub(super) ms: f64,
    pub(super) over_one: f64,
    /// With every draft accepted: the limit for an n-gram draft.
    pub(super) all_right_tokens_per_s: f64,
}

/// The cost of measuring attention mass: single steps on the device without waiting, the minimum of several runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct LookCost {
    pub(super) off_ms: f64,
    pub(super) summed_ms: f64,
    /// Summed, and read back after each token, as a chat does.
    pub(super) told_ms: f64,
    pub(super) summed_share: f64,
    pub(super) told_share: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Pool {
    /// Share of the chosen blocks that the timed steps found in the pool.
    pub(super) hit_rate: f64,
    /// Bytes that a timed step fetches; the second figure is of the steps without waiting, which repeat one token.
    pub(super) bytes_per_token: f64,
    pub(super) same_bytes_per_token: f64,
    /// A step with an empty pool, on the device without waiting, and its bytes.
    pub(super) cold_ms: f64,
    pub(super) cold_bytes_per_token: f64,
    /// A step with 80 % of the chosen blocks in the pool, interpolated by bytes.
    pub(super) ms_at_80: f64,
}

/// Figures of one context; parts that did not run are `None`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) context: usize,
    pub(super) weights: &'static str,
    pub(super) prefill: &'static str,
    pub(super) load_s: f64,
    /// Least traffic of a decode step.
    pub(super) bytes_per_token: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill_tokens_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill_tflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill_at_depth_tokens_per_s: Option<f64>,
    pub(super) decode_tokens_per_s: f64,
    pub(super) decode_gb_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_bandwidth_share: Option<f64>,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) device_ms: f64,
    pub(super) look: LookCost,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<Pool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) verify: Vec<VerifyTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draft_round_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draft_round_over_step: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draft_round_tokens_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) speculation: Option<Speculation>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sequences: Vec<Beside>,
    pub(super) peak_memory_bytes: u64,
    pub(super) memory: MemoryInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) save_gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restore_gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restore_equal: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state_bytes: Option<u64>,
}

pub(super) fn table(report: &Value, rows: &[Row]) -> String {
    let mut out = format!("{} on {}", report["model"], report["machine"]["gpu"].as_str().unwrap_or("the CPU"));
    let read_in = rows.first().map_or_else(String::new, |r| format!(", prefill in {}", r.prefill));
    let _ = writeln!(out, "{read_in}");
    let _ = writeln!(
        out,
        "{:>7} {:>9} {:>12} {:>9} {:>11} {:>8} {:>9} {:>7} {:>8} {:>8}",
        "weights", "context", "prefill t/s", "TFLOP/s", "decode t/s", "GB/token", "GB/s", "share", "p50 ms", "p99 ms"
    );
    let or_dash = |v: Option<f64>, digits: usize| v.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    for r in rows {
        let _ = writeln!(
            out,
            "{:>7} {:>9} {:>12} {:>9} {:>11.1} {:>8.2} {:>9.0} {:>7} {:>8.3} {:>8.3}",
            r.weights,
            r.context,
            or_dash(r.prefill_tokens_per_s.or(r.prefill_at_depth_tokens_per_s), 0),
            or_dash(r.prefill_tflops, 1),
            r.decode_tokens_per_s,
            r.bytes_per_token / 1e9,
            r.decode_gb_per_s,
            or_dash(r.read_bandwidth_share, 3),
            r.p50_ms,
            r.p99_ms
        );
        let _ = writeln!(
            out,
            "          look: {:.3} ms a step without, {:.3} summed ({:+.2}%), {:.3} told for each token ({:+.2}%)",
            r.look.off_ms,
            r.look.summed_ms,
            100.0 * r.look.summed_share,
            r.look.told_ms,
            100.0 * r.look.told_share
        );
        if let Some(p) = &r.pool {
            let _ = writeln!(
                out,
                "          pool: {:.1}% of the chosen blocks found, {:.2} MB fetched a token; nothing found: {:.3} ms, {:.2} MB; 80% found: {:.3} ms",
                100.0 * p.hit_rate,
                p.bytes_per_token / 1e6,
                p.cold_ms,
                p.cold_bytes_per_token / 1e6,
                p.ms_at_80
            );
        }
        for v in &r.verify {
            let _ = writeln!(
                out,
                "          verify {:>2} rows: {:.3} ms, {:.3} of one row; all right {:.0} t/s",
                v.rows, v.ms, v.over_one, v.all_right_tokens_per_s
            );
        }
        if let (Some(ms), Some(over), Some(rate)) =
            (r.draft_round_ms, r.draft_round_over_step, r.draft_round_tokens_per_s)
        {
            let _ = writeln!(
                out,
                "          draft round of {ROUND_DRAFTS}: {ms:.3} ms, {over:.3} of a step; {ROUND_TOKENS} tokens a round {rate:.0} t/s"
            );
        }
        if let Some(s) = r.speculation {
            let slowest = or_dash(s.wrong_slowest_window, 3);
            let _ = writeln!(
                out,
                "          speculation: all wrong {:.3} of plain, slowest window {slowest}; all right {:.2}; same text: {}",
                s.wrong_over_plain, s.right_over_plain, s.same_text
            );
        }
        out.extend(r.sequences.iter().map(Beside::line));
        if let (Some(save), Some(restore)) = (r.save_gb_per_s, r.restore_gb_per_s) {
            let _ = writeln!(
                out,
                "          save {save:.2} GB/s, restore {restore:.2} GB/s, equal bits: {}",
                match r.restore_equal {
                    Some(true) => "yes",
                    Some(false) => "no",
                    None => "not compared",
                }
            );
        }
    }
    out
}
