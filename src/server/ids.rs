//! Ids in paths, and new ids of answers.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::refusal::Refusal;

/// An id in a path, with percent-encoding resolved.
pub(super) struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, Refusal> {
        let read = Path::<String>::from_request_parts(parts, state).await;
        let refusal = |_| Refusal::new(400, "invalid_url", "the path is not UTF-8 once its codes of % are resolved");
        read.map(|Path(id)| Id(id)).map_err(refusal)
    }
}

pub(super) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:014x}", crate::runtime::fresh_seed())
}
