//! The registration of a route: its paths, who may use it, its bodies and answers, and its handler.
//!
//! ```text
//!                ┌─► the router          (web)
//!  Route ────────┼─► the OpenAPI document (openapi)
//!  (a dialect's) ├─► README's list of routes
//!                └─► the test of who may ask what
//! ```
//!
//! A route is served exactly if it is described, since both come from the same value.

mod slashes;

use std::{borrow::Cow, sync::Arc};

use axum::{
    handler::Handler,
    routing::{MethodRouter, delete, get, head, post},
};
use http::Method;
use muster_core::Code;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Content, HttpMethod, Ref, RefOr, Required, Response, Schema,
        extensions::ExtensionsBuilder,
        path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn},
        request_body::RequestBody,
        schema::{
            ArrayBuilder, KnownFormat, Object, ObjectBuilder, OneOfBuilder, SchemaFormat, SchemaType, Type,
        },
    },
};

pub(crate) use self::slashes::{Path, Slashes};
use super::{App, access::Access, reply::Refusal};
use crate::{render::error::ErrorForm, translate::read::Schemas};

/// The prefixes under which routes that begin with `/v1` are served (seeds 000 and 004; Lemonade's clients also know `v0`). The document
/// shows the first.
pub(crate) const PREFIXES: [&str; 4] = ["/v1", "/api/v1", "/v0", "/api/v0"];

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
const EVENT_STREAM: &str = "text/event-stream";
/// The media type of a stream of JSON lines.
pub(crate) const JSON_LINES: &str = "application/x-ndjson";

/// What the routes of one API share.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Heading of the routes in the document.
    pub(crate) name: &'static str,
    pub(crate) errors: &'static ErrorForm,
    /// The type of its errors.
    pub(crate) error: Named,
    pub(crate) routes: fn() -> Vec<Route>,
}

/// A type of the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    name: fn() -> Cow<'static, str>,
    collect: fn(&mut Schemas),
}

impl Named {
    pub(crate) const fn of<T: ToSchema>() -> Self {
        Self {
            name: T::name,
            collect: |out| {
                out.push((T::name().into_owned(), T::schema()));
                T::schemas(out);
            },
        }
    }

    fn reference(self) -> Ref {
        Ref::from_schema_name((self.name)())
    }
}

/// One route.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path in axum's syntax, except that text may follow `{*name}`, whose value may contain slashes.
    path: &'static str,
    aliases: Vec<&'static str>,
    pub(crate) access: Access,
    pub(crate) handler: MethodRouter<Arc<App>>,
    pub(crate) shown_method: HttpMethod,
    operation: Operation,
    answer: Response,
    /// Statuses of errors and their meaning. The dialect gives their form.
    errors: Vec<(&'static str, &'static str)>,
    types: Vec<Named>,
}

impl Route {
    pub(crate) fn get<H: Handler<T, Arc<App>>, T: 'static>(
        path: &'static str,
        access: Access,
        handler: H,
    ) -> Self {
        Self::new((Method::GET, HttpMethod::Get), path, access, get(handler))
    }

    pub(crate) fn post<H: Handler<T, Arc<App>>, T: 'static>(
        path: &'static str,
        access: Access,
        handler: H,
    ) -> Self {
        Self::new((Method::POST, HttpMethod::Post), path, access, post(handler))
    }

    pub(crate) fn head<H: Handler<T, Arc<App>>, T: 'static>(
        path: &'static str,
        access: Access,
        handler: H,
    ) -> Self {
        Self::new((Method::HEAD, HttpMethod::Head), path, access, head(handler))
    }

    /// A route that its API has and Muster has not: 501 with the reason, so that nobody takes the API for another.
    pub(crate) fn not_done(method: &Method, path: &'static str, access: Access, why: &'static str) -> Self {
        let refuse = async move || Refusal::from(Code::NotImplemented.error(why));
        let route = match *method {
            Method::GET => Self::get(path, access, refuse),
            Method::DELETE => Self::delete(path, access, refuse),
            _ => Self::post(path, access, refuse),
        };
        route.summary("Not done by Muster").error("501", why)
    }

    pub(crate) fn delete<H: Handler<T, Arc<App>>, T: 'static>(
        path: &'static str,
        access: Access,
        handler: H,
    ) -> Self {
        Self::new(
            (Method::DELETE, HttpMethod::Delete),
            path,
            access,
            delete(handler),
        )
    }

    fn new(
        (method, shown_method): (Method, HttpMethod),
        path: &'static str,
        access: Access,
        handler: MethodRouter<Arc<App>>,
    ) -> Self {
        Self {
            method,
            path,
            aliases: Vec::new(),
            access,
            handler,
            shown_method,
            operation: Operation::new(),
            answer: Response::default(),
            errors: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Adds another path for the route.
    pub(crate) fn also(mut self, path: &'static str) -> Self {
        self.aliases.push(path);
        self
    }

    /// Sets what the route does, in one line.
    pub(crate) fn summary(mut self, text: &str) -> Self {
        self.operation.summary = Some(text.to_owned());
        self
    }

    /// Sets further description.
    pub(crate) fn description(mut self, text: &str) -> Self {
        self.operation.description = Some(text.to_owned());
        self
    }

    /// Describes a part of the path.
    pub(crate) fn part<T: PartialSchema>(self, name: &str, text: &str) -> Self {
        self.parameter::<T>(ParameterIn::Path, Required::True, name, text)
    }

    /// Describes an optional parameter of the query.
    pub(crate) fn query<T: PartialSchema>(self, name: &str, text: &str) -> Self {
        self.parameter::<T>(ParameterIn::Query, Required::False, name, text)
    }

    /// Describes a required parameter of the query.
    pub(crate) fn needs_query<T: PartialSchema>(self, name: &str, text: &str) -> Self {
        self.parameter::<T>(ParameterIn::Query, Required::True, name, text)
    }

    fn parameter<T: PartialSchema>(
        mut self,
        place: ParameterIn,
        required: Required,
        name: &str,
        text: &str,
    ) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .required(required)
            .description(Some(text))
            .schema(Some(T::schema()));
        self.operation = OperationBuilder::from(self.operation)
            .parameter(parameter)
            .build();
        self
    }

    /// The route takes a JSON body of type `T`.
    pub(crate) fn takes<T: ToSchema>(self) -> Self {
        self.takes_as::<T>(JSON)
    }

    /// The route takes a body of type `T` in another media type.
    pub(crate) fn takes_as<T: ToSchema>(mut self, kind: &str) -> Self {
        let content = Content::new(Some(self.of::<T>()));
        self.body(kind, content, Some(Required::True))
    }

    /// The route takes a JSON list of `T`.
    pub(crate) fn takes_list<T: ToSchema>(mut self) -> Self {
        let content = Content::new(Some(ArrayBuilder::new().items(self.of::<T>())));
        self.body(JSON, content, Some(Required::True))
    }

    /// The route takes a JSON body of type `T`, which may be absent.
    pub(crate) fn may_take<T: ToSchema>(mut self, text: &str) -> Self {
        let nothing = ObjectBuilder::new().schema_type(Type::Null);
        let either = OneOfBuilder::new().item(self.of::<T>()).item(nothing);
        self.body(JSON, Content::new(Some(either)), None).body_text(text)
    }

    /// The route takes bytes, which its handler reads as they come.
    pub(crate) fn takes_bytes(self, text: &str) -> Self {
        let bytes = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        self.body(BYTES, Content::new(Some(bytes)), Some(Required::True))
            .body_text(text)
    }

    /// The route takes any body or none.
    pub(crate) fn takes_anything(self, text: &str) -> Self {
        let anything = Content::new(Some(anything()));
        self.body(JSON, anything, None).body_text(text)
    }

    /// Describes the body.
    pub(crate) fn body_text(mut self, text: &str) -> Self {
        if let Some(RefOr::T(body)) = &mut self.operation.request_body {
            body.description = Some(text.to_owned());
        }
        self
    }

    fn body(mut self, kind: &str, content: Content, required: Option<Required>) -> Self {
        let body = self.operation.request_body.take();
        let mut body = match body {
            Some(RefOr::T(body)) => body,
            Some(RefOr::Ref(_)) | None => RequestBody::new(),
        };
        body.required = required;
        body.content.insert(kind.to_owned(), content.into());
        self.operation.request_body = Some(RefOr::T(body));
        self
    }

    /// The route answers with JSON of type `T`.
    pub(crate) fn answers<T: ToSchema>(self, text: &str) -> Self {
        self.answers_as::<T>(JSON).answer_text(text)
    }

    /// The route answers with type `T` in another media type, beside JSON.
    pub(crate) fn answers_as<T: ToSchema>(mut self, kind: &str) -> Self {
        let content = Content::new(Some(self.of::<T>()));
        self.answer_content(kind, content)
    }

    /// The route can answer with server-sent events.
    pub(crate) fn streams(self) -> Self {
        self.answers_as::<StreamEvent>(EVENT_STREAM)
    }

    /// The route answers with a JSON list of `T`.
    pub(crate) fn answers_list<T: ToSchema>(mut self, text: &str) -> Self {
        let content = Content::new(Some(ArrayBuilder::new().items(self.of::<T>())));
        self.answer_content(JSON, content).answer_text(text)
    }

    /// The route answers with text of this media type.
    pub(crate) fn answers_text(self, kind: &str, text: &str) -> Self {
        self.answer_content(kind, Content::new(Some(String::schema())))
            .answer_text(text)
    }

    /// The route answers with any JSON.
    pub(crate) fn answers_anything(self, text: &str) -> Self {
        let anything = Content::new(Some(anything()));
        self.answer_content(JSON, anything).answer_text(text)
    }

    /// Describes the answer.
    pub(crate) fn answer_text(mut self, text: &str) -> Self {
        text.clone_into(&mut self.answer.description);
        self
    }

    fn answer_content(mut self, kind: &str, content: Content) -> Self {
        self.answer.content.insert(kind.to_owned(), content.into());
        self
    }

    /// Adds an error for a status or a class of statuses.
    pub(crate) fn error(mut self, status: &'static str, text: &'static str) -> Self {
        self.errors.push((status, text));
        self
    }

    /// Describes the errors that the caller causes.
    pub(crate) fn refuses(self, text: &'static str) -> Self {
        self.error("4XX", text)
    }

    /// Describes the errors that the caller does not cause.
    pub(crate) fn fails(self, text: &'static str) -> Self {
        self.error("5XX", text)
    }

    /// Adds the errors of routes that run a model.
    pub(crate) fn inference_errors(self) -> Self {
        self.refuses("The request is wrong, refused, or cannot be served now.")
            .fails("The model cannot be loaded or failed.")
    }

    /// Adds the errors of routes that change something.
    pub(crate) fn change_errors(self) -> Self {
        self.refuses("The request is wrong or refused.")
            .fails("It could not be done.")
    }

    /// Refers to a type of the document.
    fn of<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let named = Named::of::<T>();
        self.types.push(named);
        named.reference().into()
    }

    /// All paths that the route is served at.
    pub(crate) fn paths(&self) -> Vec<Path> {
        let paths = std::iter::once(&self.path).chain(&self.aliases);
        let everywhere = |path: &&'static str| match path.strip_prefix("/v1/") {
            Some(rest) => PREFIXES
                .iter()
                .map(|prefix| Path(format!("{prefix}/{rest}")))
                .collect(),
            None => vec![Path((*path).to_owned())],
        };
        paths.flat_map(everywhere).collect()
    }

    /// The paths that the document shows, the route's own first.
    pub(crate) fn shown_paths(&self) -> impl Iterator<Item = String> {
        let paths = std::iter::once(&self.path).chain(&self.aliases);
        paths.map(|path| path.replace("{*", "{"))
    }

    /// The route in the document.
    pub(crate) fn operation(&self, dialect: &Dialect) -> Operation {
        let mut operation = self.operation.clone();
        operation.tags = Some(vec![dialect.name.to_owned()]);
        let access = ExtensionsBuilder::new().add("x-access", self.access.word());
        operation.extensions = Some(access.build());
        let responses = &mut operation.responses.responses;
        responses.insert("200".to_owned(), self.answer.clone().into());
        for (status, text) in &self.errors {
            let mut response = Response::new(*text);
            let error = Content::new(Some(dialect.error.reference()));
            response.content.insert(JSON.to_owned(), error.into());
            responses.insert((*status).to_owned(), response.into());
        }
        operation
    }

    /// Collects the types that its description needs.
    pub(crate) fn schemas(&self, dialect: &Dialect, out: &mut Schemas) {
        self.types.iter().for_each(|named| (named.collect)(out));
        if !self.errors.is_empty() {
            (dialect.error.collect)(out);
        }
    }
}

/// One of the server-sent events of a streamed answer.
#[derive(ToSchema)]
#[allow(dead_code, reason = "read by the derive only")]
struct StreamEvent {
    /// Kind of the event, in dialects that name their events.
    event: Option<String>,
    /// The event as JSON, or `[DONE]`.
    data: String,
}

/// A schema of any JSON.
fn anything() -> Object {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).build()
}

#[cfg(test)]
mod tests;
