//! What `prune` removes of the store, of the requests to serve and of packed weights, and what it would remove.

use serde_json::json;

use super::args::PruneArgs;
use super::columns::when;
use super::open::LISTED;
use super::sessions_cmd::confirmed;
use super::{Context, Exit, Failure, open};
use crate::core::sanitize::Clean;
use crate::core::{bytes, counted};
use crate::model::quantize::{Stage, kept_folders, remove_kept};
use crate::store::{Extent, Freed, SegmentId, SessionFilter, SessionRecord, Store};

pub(super) fn prune(context: &Context, args: &PruneArgs) -> Result<Exit, Failure> {
    let store = if args.dry_run { open::store_to_read(context)? } else { open::store_to_change(context)? };
    let requests = open::folder_of_requests(context).map(|_| open::store_of_requests(context)).transpose()?;
    if args.dry_run {
        return prune_dry_run(context, args, &store, requests.as_deref());
    }
    if args.all && !args.state && !args.yes {
        let trashed = store.sessions(SessionFilter::Trashed, LISTED)?.len() as u64;
        let question = format!("Delete {} in the trash for good?", counted(trashed, "session"));
        if trashed > 0 && !confirmed(&question)? {
            return Err(Failure::new(Exit::Failure, "nothing was removed"));
        }
    }
    let mut total = Freed::default();
    for store in [Some(&store), requests.as_ref()].into_iter().flatten() {
        total.add(store.empty_trash(days_in_trash(args))?);
        total.add(if args.state { store.drop_all_state(&spared(args, store)?)? } else { store.keep_budget(&[])? });
        total.add(store.collect()?);
        total.files += store.remove_orphans();
    }
    let weights = remove_kept(&context.dirs.kept_weights())?;
    total.add(Freed { files: weights.files, bytes: weights.bytes, ..Freed::default() });
    let text = || {
        let files = (total.files > 0 || total.bytes > 0)
            .then(|| format!("{} freed in {}", bytes(total.bytes), counted(total.files, "file")));
        let sessions = (total.sessions > 0)
            .then(|| format!("{} in the trash deleted for good", counted(total.sessions, "session")));
        let done: Vec<String> = files.into_iter().chain(sessions).collect();
        if done.is_empty() { "Nothing to remove.".to_owned() } else { format!("{}.", done.join("; ")) }
    };
    context.result(|| json!(total), text)
}

/// Days that a session stays in the trash; `None` is the setting.
fn days_in_trash(args: &PruneArgs) -> Option<u32> {
    (args.all && !args.state).then_some(0)
}

/// Segments that keep their state in `prune --state`: library documents, unless `--all` is given.
fn spared(args: &PruneArgs, store: &Store) -> Result<Vec<SegmentId>, Failure> {
    let documents = if args.all { Vec::new() } else { store.documents()? };
    Ok(documents.iter().map(|d| d.document.segment).collect())
}

/// Bytes of state in a store that `prune` would drop, and all of them.
fn state_to_drop(args: &PruneArgs, store: &Store) -> Result<(u64, u64), Failure> {
    let all = store.state_bytes()?;
    let stays = match args.state {
        true => store.state_bytes_of(&spared(args, store)?)?,
        false => store.limits.max_state_bytes.max(store.state_bytes_of_marks()?),
    };
    Ok((all.saturating_sub(stays), all))
}

fn prune_dry_run(
    context: &Context,
    args: &PruneArgs,
    store: &Store,
    requests: Option<&Store>,
) -> Result<Exit, Failure> {
    let sizes = store.state_sizes()?;
    let trashed = store.sessions(SessionFilter::Trashed, LISTED)?;
    let old = store.old_in_trash(days_in_trash(args))?;
    let gone = trashed.iter().filter(|r| old.contains(&r.id)).map(|r| Ok((r, store.extent(r.id)?)));
    let gone = gone.collect::<Result<Vec<(&SessionRecord, Extent)>, Failure>>()?;
    let mut states: Vec<(String, u64)> = Vec::new();
    let mut documents = Vec::new();
    if args.state {
        for r in store.sessions(SessionFilter::Live, LISTED)? {
            let reached = sizes.sessions.get(&r.id).map_or(0, |s| s.state);
            states.extend((reached > 0).then_some((r.name, reached)));
        }
        if args.all {
            documents.extend(store.documents()?.into_iter().filter(|d| d.kept).map(|d| d.document.name));
        }
    }
    let (beyond, _) = state_to_drop(args, store)?;
    let (of_requests, all_requests) = requests.map_or(Ok((0, 0)), |store| state_to_drop(args, store))?;
    let kept = kept_folders(&context.dirs.kept_weights());
    let weights: u64 = kept.iter().filter(|kept| kept.stage != Stage::Going).map(|kept| kept.bytes).sum();
    let json = || {
        json!({
            "weights_bytes": weights,
            "state_bytes": sizes.state_bytes, "trashed_sessions": trashed.len(), "would_free_state_bytes": beyond,
            "sessions": gone.iter().map(|(r, _)| &r.name).collect::<Vec<_>>(),
            "states": states.iter().map(|(name, bytes)| json!({ "session": name, "bytes": bytes })).collect::<Vec<_>>(),
            "documents": documents,
            "requests": { "state_bytes": all_requests, "would_free_state_bytes": of_requests },
        })
    };
    let text = || {
        let mut lines = Vec::new();
        for (r, extent) in &gone {
            let since = r.trashed_ms.map(when).unwrap_or_default();
            lines.push(format!("session   {}, {extent}, in the trash since {since}", Clean::line(&r.name)));
        }
        // State that a library document shares may stay.
        let most = if args.all { "" } else { "up to " };
        let of = |name: &str, what: String| format!("state of  {}, {what}", Clean::line(name));
        lines.extend(states.iter().map(|(name, all)| of(name, format!("{most}{}", bytes(*all)))));
        lines.extend(documents.iter().map(|name| of(name, "a document of the library".to_owned())));
        lines.extend((weights > 0).then(|| format!("weights   {} that were packed by earlier starts", bytes(weights))));
        if !args.state && beyond > 0 {
            lines.push(format!("state     {} of the least recently used, above sessions.max_state_gib", bytes(beyond)));
        }
        lines.extend((of_requests > 0).then(|| format!("requests  {} of state that serve kept", bytes(of_requests))));
        if lines.is_empty() {
            lines.push("Nothing would go.".to_owned());
        } else {
            lines.insert(0, "This would go:".to_owned());
        }
        let stays = counted((trashed.len() - gone.len()) as u64, "session");
        let (state, served) = (bytes(sizes.state_bytes), bytes(all_requests));
        lines.push(format!("State now: {state}, of answers by serve: {served}. Left in the trash: {stays}."));
        lines.push("Nothing was removed.".to_owned());
        lines.join("\n")
    };
    context.result(json, text)
}
