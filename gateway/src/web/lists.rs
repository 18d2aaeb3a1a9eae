//! Lists of all models as they were answered last: with a large catalogue, clients that ask every few seconds cost most otherwise.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::reply;
use crate::fleet::table::Table;

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listed {
    /// OpenAI's, of models that are here.
    OpenAi,
    /// The same, of all models.
    OpenAiAll,
    /// Ollama's.
    Ollama,
}

/// Answers that hold as long as the route table that they were made of.
#[derive(Debug, Default)]
pub(crate) struct Lists(Mutex<HashMap<Listed, (Weak<Table>, Bytes)>>);

impl Lists {
    /// The answer that was made of this table, if one was.
    pub(crate) fn made_of(&self, table: &Arc<Table>, listed: Listed) -> Option<Response> {
        let lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A table is never changed, and its place is not used again while something points there.
        let known = lists
            .get(&listed)
            .filter(|(of, _)| of.as_ptr() == Arc::as_ptr(table));
        known.map(|(_, body)| reply::ok(body.clone()))
    }

    /// Answers with a list that was made of this table and nothing else.
    pub(crate) fn answer<T: Serialize>(&self, table: &Arc<Table>, listed: Listed, list: &T) -> Response {
        match serde_json::to_vec(list) {
            Ok(body) => {
                let body = Bytes::from(body);
                let made = (Arc::downgrade(table), body.clone());
                self.0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(listed, made);
                reply::ok(body)
            }
            // It fails again there, and says why.
            Err(_) => reply::value(StatusCode::OK, list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_as_long_as_its_table() {
        let (lists, table) = (Lists::default(), Arc::new(Table::default()));
        assert!(lists.made_of(&table, Listed::Ollama).is_none());
        lists.answer(&table, Listed::Ollama, &["m"]);
        assert!(lists.made_of(&table, Listed::Ollama).is_some());
        assert!(lists.made_of(&table, Listed::OpenAi).is_none(), "another list");
        let next = Arc::new(Table::clone(&table));
        drop(table);
        assert!(lists.made_of(&next, Listed::Ollama).is_none());
    }
}
