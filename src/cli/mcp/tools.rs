//! The protocol: tools with their arguments, resources, progress and cancellation. Agents read the comments of tools and arguments.

use std::path::Path;
use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolResult, Implementation, ListResourcesResult, PaginatedRequestParams, ProgressNotificationParam,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ServerCapabilities, ServerConfig,
};
use rmcp::schemars::{self, JsonSchema};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use serde::Deserialize;

use super::Roots;
use super::answers::{self, Answered};
use super::library::Library;
use super::worker::Worker;
use crate::core::counted;
use crate::runtime::protocol::{LibraryAction, Notice, Request};

const DOCUMENT: &str = "sala://document/";
const INSTRUCTIONS: &str = "A library of long documents that a local model has read. Its memory of them is kept, so \
    a question about a document costs no reading: ask it instead of reading the file again. add_document reads a file \
    once; ask answers with checked quotes and the lines that the answer rests on.";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AddArgs {
    /// File or folder, absolute or relative to the working folder.
    path: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskArgs {
    /// Names of documents as list_documents shows them.
    documents: Vec<String>,
    /// One self-contained question. Earlier questions are not remembered.
    question: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskAllArgs {
    /// One self-contained question.
    question: String,
    /// Glob pattern of document names, for example *.md; all documents if absent.
    #[serde(default)]
    documents: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindArgs {
    /// Name of the document as list_documents shows it.
    document: String,
    /// The passage to find, a few words or more.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WhenArgs {
    /// Name of the document as list_documents shows it.
    document: String,
    /// A question with an answer that may change along the document.
    question: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchArgs {
    /// Words to find.
    text: String,
}

#[derive(Clone)]
pub(super) struct Tools {
    worker: Arc<Worker>,
    library: Arc<Library>,
    roots: Arc<Roots>,
}

type Context = RequestContext<RoleServer>;

fn question(text: String) -> Result<String, String> {
    if text.trim().is_empty() { Err("The question is empty.".to_owned()) } else { Ok(text) }
}

#[tool_router]
impl Tools {
    pub(super) fn new(worker: Arc<Worker>, library: Library, roots: Roots) -> Tools {
        Tools { worker, library: Arc::new(library), roots: Arc::new(roots) }
    }

    /// Runs a look-up on a thread of its own, so that it holds up no other request.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let library = Arc::clone(&self.library);
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        done.unwrap_or_else(|_| Err("internal error: the look-up ended unexpectedly".to_owned()))
    }

    /// Serves a request of the runtime; reports progress where the client wants it, and stops when it cancels.
    async fn call(&self, request: Request, context: &Context) -> Result<Vec<Notice>, String> {
        let (progress, mut updates) = tokio::sync::mpsc::unbounded_channel();
        // Dropped with this future.
        let (_held, given_up) = crossbeam_channel::bounded(0);
        let worker = Arc::clone(&self.worker);
        let mut reply = tokio::task::spawn_blocking(move || worker.call(request, &progress, given_up));
        let (token, mut steps) = (context.meta.get_progress_token(), 0.0);
        loop {
            tokio::select! {
                biased;
                () = context.ct.cancelled() => return Err("cancelled".to_owned()),
                Some(what) = updates.recv() => if let Some(token) = token.clone() {
                    // The protocol demands that it only grows: it counts the messages.
                    steps += 1.0;
                    let progress = ProgressNotificationParam::new(token, steps).with_message(what);
                    // A client that is gone cancels the call too.
                    let _ = context.peer.notify_progress(progress).await;
                },
                reply = &mut reply => {
                    return reply.unwrap_or_else(|_| Err("The program is ending.".to_owned()));
                }
            }
        }
    }

    /// List the documents of the library: names for the other tools, size, and whether the model's memory of each is
    /// kept (then a question about it costs no reading).
    #[tool(annotations(title = "List documents", read_only_hint = true, open_world_hint = false))]
    async fn list_documents(&self) -> Answered {
        Ok(answers::documents(&self.look(Library::documents).await?))
    }

    /// Read a file or folder into the library, once; questions about it are then answered without reading it again. A
    /// file that changed is read again from its first change. Only below the folders that the user allowed.
    #[tool(annotations(
        title = "Add a document",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn add_document(&self, Parameters(args): Parameters<AddArgs>, context: Context) -> Answered {
        if args.path.trim().is_empty() {
            return Err("path is empty: name a file or folder.".to_owned());
        }
        let real = self.roots.allowed(&args.path)?;
        let path = real.to_str().ok_or_else(|| format!("{}: its name is not UTF-8 text", args.path))?.to_owned();
        let notices = self.call(Request::Library(LibraryAction::Add(path)), &context).await?;
        let mut documents = self.look(Library::documents).await?;
        let below = |path: &str| Path::new(path).starts_with(&real);
        documents.retain(|d| d.document.path.as_deref().is_some_and(below));
        answers::added(&notices, &documents)
    }

    /// Ask a question about one or more documents of the library. The answer has the text, its quotes looked up in the
    /// documents (exact, equal, close or none, with lines), the lines that the model looked at with their shares, and
    /// usage: tokens read now and reused from kept memory. The same documents in any order share their memory.
    #[tool(annotations(title = "Ask documents", read_only_hint = true, open_world_hint = false))]
    async fn ask(&self, Parameters(args): Parameters<AskArgs>, context: Context) -> Answered {
        let (mut documents, question) = (args.documents, question(args.question)?);
        if documents.is_empty() {
            return Err("documents is empty: name at least one; list_documents lists them.".to_owned());
        }
        // One order, so that the same documents find the same kept state.
        documents.sort();
        documents.dedup();
        let names = documents.clone();
        self.look(move |library| library.named(&names)).await?;
        answers::answer(&self.call(Request::AskLibrary { documents, question }, &context).await?)
    }

    /// Ask every document of the library the same question, each by itself, and get a table of answers with the lines
    /// each rests on and how likely it is. Use it to find which documents know something.
    #[tool(annotations(title = "Ask all documents", read_only_hint = true, open_world_hint = false))]
    async fn ask_all(&self, Parameters(args): Parameters<AskAllArgs>, context: Context) -> Answered {
        let (question, library) = (question(args.question)?, args.documents);
        answers::answers(&self.call(Request::AskAll { question, library, read: false }, &context).await?)
    }

    /// Look a passage up in a document: exact, equal but for typography and white space, close (with the differences),
    /// or none; with line numbers and the document's own text. Needs no model. Use it to check a quote.
    #[tool(annotations(title = "Find a quote", read_only_hint = true, open_world_hint = false))]
    async fn find_quote(&self, Parameters(args): Parameters<FindArgs>) -> Answered {
        let found = self.look(move |library| library.find(&args.document, &args.text)).await?;
        Ok(CallToolResult::structured(found))
    }

    /// Find where along a document the answer to a question changes: the question is asked at several places, each time
    /// as if the document ended there.
    #[tool(annotations(title = "When does it change", read_only_hint = true, open_world_hint = false))]
    async fn when(&self, Parameters(args): Parameters<WhenArgs>, context: Context) -> Answered {
        let (document, question) = (args.document, question(args.question)?);
        let names = vec![document.clone()];
        self.look(move |library| library.named(&names)).await?;
        answers::when(&self.call(Request::WhenLibrary { document, question }, &context).await?)
    }

    /// Search the user's saved conversations for words. Needs no model.
    #[tool(annotations(title = "Search sessions", read_only_hint = true, open_world_hint = false))]
    async fn search_sessions(&self, Parameters(args): Parameters<SearchArgs>) -> Answered {
        Ok(answers::hits(&self.look(move |library| library.search(&args.text)).await?))
    }
}

#[tool_handler]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("sala-chat", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let documents = self.look(Library::documents).await.map_err(|e| ErrorData::internal_error(e, None))?;
        let resource = |d: &crate::store::DocumentRecord| {
            let name = &d.document.name;
            let uri = format!("{DOCUMENT}{}", utf8_percent_encode(name, NON_ALPHANUMERIC));
            let about = [counted(d.document.tokens, "token"), counted(d.document.lines, "line")].join(", ");
            Resource::new(uri, name).with_mime_type("text/plain").with_description(about)
        };
        Ok(ListResourcesResult::with_all_items(documents.iter().map(resource).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let name = uri.strip_prefix(DOCUMENT).and_then(|name| percent_decode_str(name).decode_utf8().ok());
        let Some(name) = name.map(String::from) else {
            return Err(ErrorData::resource_not_found(format!("{uri}: a document is {DOCUMENT}NAME"), None));
        };
        let text = self.look(move |library| library.text(&name)).await;
        let text = text.map_err(|e| ErrorData::resource_not_found(e, None))?;
        Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri)]).into())
    }
}
