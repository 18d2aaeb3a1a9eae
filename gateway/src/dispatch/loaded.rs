//! Short questions to an instance that is there: tokens, templates, an engine's own HTTP. They load nothing (DECISIONS.md, Autoload) and touch
//! nothing.

use muster_proto::{
    Code, ErrorExt as _,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, ErrorInfo, InstanceRef, TokenizeCall, TokenizeResult,
        inference_client::InferenceClient,
    },
};
use tonic::{Response, Status, transport::Channel};

use super::{Dispatcher, pick, unknown_model};
use crate::fleet::table::state_error;

/// A way to ask one loaded instance.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// To be named in each call.
    pub(crate) instance: Option<InstanceRef>,
    client: InferenceClient<Channel>,
}

impl Dispatcher {
    /// An instance of `model` that is loaded.
    ///
    /// # Errors
    /// `unknown_model`, or why it is not loaded.
    pub(crate) fn loaded(&self, model: &str) -> Result<Loaded, ErrorInfo> {
        let table = self.fleet.table();
        let summary = table.model(model).ok_or_else(|| unknown_model(model))?;
        let target = pick::pick(table.targets(model), 0, |_| false, |_| false, |_| 0)
            .ok_or_else(|| state_error(summary))?;
        Ok(Loaded {
            instance: target.route.instance.clone(),
            client: self.pool.client(&target.route.addresses)?,
        })
    }
}

impl Loaded {
    /// Renders a conversation into the prompt the model would see.
    ///
    /// # Errors
    /// What the worker says.
    pub(crate) async fn apply_template(
        &mut self,
        call: ApplyTemplateCall,
    ) -> Result<ApplyTemplateResult, ErrorInfo> {
        answer(self.client.apply_template(call).await)
    }

    /// Turns text into tokens.
    ///
    /// # Errors
    /// What the worker says.
    pub(crate) async fn tokenize(&mut self, call: TokenizeCall) -> Result<TokenizeResult, ErrorInfo> {
        answer(self.client.tokenize(call).await)
    }
}

fn answer<T>(result: Result<Response<T>, Status>) -> Result<T, ErrorInfo> {
    match result {
        Ok(response) => Ok(response.into_inner()),
        // An error without typed details is the connection's.
        Err(status) if status.details().is_empty() => {
            Err(Code::WorkerLost.error(format!("the worker did not answer: {}", status.message())))
        }
        Err(status) => Err(ErrorInfo::from_status(&status)),
    }
}
