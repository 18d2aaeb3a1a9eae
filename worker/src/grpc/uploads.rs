//! The service `Uploads`: files of models that clients bring.

use futures::{StreamExt as _, stream};
use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    hub::{Sum, SumError},
    v1::{
        LookForUploadRequest, UploadPart, UploadedFile,
        uploads_server::{Uploads, UploadsServer},
    },
};
use tonic::{Request, Response, Status, Streaming};

use crate::hub::{
    cache::Cache,
    upload::{self, Part},
};

/// The service.
#[derive(Debug)]
pub(crate) struct UploadService(Cache);

/// Makes the service for tonic.
pub(crate) fn server(cache: Cache) -> UploadsServer<UploadService> {
    UploadsServer::new(UploadService(cache)).max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
}

fn sum(text: &str) -> Result<Sum, Status> {
    let invalid = |error: SumError| Code::InvalidRequest.error(error.to_string()).with_param("sha256");
    text.parse().map_err(|error| invalid(error).into_status())
}

#[tonic::async_trait]
impl Uploads for UploadService {
    async fn look(&self, request: Request<LookForUploadRequest>) -> Result<Response<UploadedFile>, Status> {
        let sum = sum(&request.get_ref().sha256)?;
        let size = upload::look(&self.0, &sum).await.map_err(Error::into_status)?;
        Ok(Response::new(UploadedFile {
            there: size.is_some(),
            size_bytes: size.unwrap_or_default(),
        }))
    }

    async fn put(&self, request: Request<Streaming<UploadPart>>) -> Result<Response<UploadedFile>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.unwrap_or_default();
        let sum = sum(&first.sha256)?;
        let messages = stream::iter([Ok(first)]).chain(messages);
        let parts = messages.flat_map(|message| {
            let (content, end) = match message {
                Ok(UploadPart { content, last, .. }) => {
                    (Ok(Part::Content(content)), last.then_some(Ok(Part::End)))
                }
                Err(status) => (Err(Error::from_status(&status)), None),
            };
            stream::iter([content].into_iter().chain(end))
        });
        let size_bytes = upload::put(&self.0, &sum, parts)
            .await
            .map_err(Error::into_status)?;
        Ok(Response::new(UploadedFile {
            there: true,
            size_bytes,
        }))
    }
}
