//! Models that are not loaded.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream::FuturesUnordered};
use muster_core::Code;
use muster_proto::v1::{Ready, ensure_loaded_event::Kind};
use serde_json::json;

use crate::{
    gateway::{Gateway, chat, read},
    worker::{Worker, says},
};

fn cold() -> serde_json::Value {
    json!({"model": "cold"})
}

#[tokio::test]
async fn a_hundred_callers_of_a_cold_model_make_one_wish() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, controller) = Gateway::with(vec![]).await;
    let route = worker.route("cold", "i");
    // The queue holds a hundred: the ten refusals say that all others wait.
    let mut callers: FuturesUnordered<_> = (0..110).map(|_| gateway.chat(cold())).collect();
    for _ in 0..10 {
        let (status, body) = read(callers.next().await.unwrap()).await;
        assert_eq!(
            (status.as_u16(), &body["error"]["code"]),
            (429, &json!("queue_full"))
        );
    }
    controller.say(|said| said.answer = Some(Kind::Ready(Ready { route: Some(route) })));
    while let Some(response) = callers.next().await {
        assert_eq!(response.status(), 200);
    }
    // The wish is closed, and with it the hold, once all are admitted.
    let heard = controller.hears(|heard| heard.closed == heard.wishes.len()).await;
    assert_eq!(heard.wishes.len(), 1);
    assert_eq!(heard.wishes[0].model_id, "cold");
    let starts = worker.starts();
    assert_eq!(starts.len(), 100);
    assert!(
        starts
            .iter()
            .all(|start| start.hold_id == heard.wishes[0].ensure_id)
    );
}

#[tokio::test]
async fn a_caller_that_goes_gives_up_its_wish() {
    let (gateway, controller) = Gateway::with(vec![]).await;
    let request = gateway
        .client
        .post(format!("{}/v1/chat/completions", gateway.url))
        .json(&chat(cold()));
    let caller = tokio::spawn(request.send());
    controller.hears(|heard| heard.wishes.len() == 1).await;
    caller.abort();
    controller.hears(|heard| heard.closed == 1).await;
}

#[tokio::test]
async fn what_the_controller_refuses_is_the_answer() {
    let (gateway, controller) = Gateway::with(vec![]).await;
    let error = Code::SlotsPinned.error("only pinned models stand in the way");
    controller.say(|said| said.answer = Some(Kind::Failed(error.into())));
    let (status, body) = read(gateway.chat(cold()).await).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (409, &json!("slots_pinned"))
    );
}

#[tokio::test]
async fn without_a_controller_a_cold_model_is_refused_after_a_while_and_never_before_it_returns() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, controller) = Gateway::with(vec![]).await;
    let said = |route| crate::controller::Said {
        epoch: 2,
        answer: Some(Kind::Ready(Ready { route: Some(route) })),
        models: vec![crate::gateway::model("cold")],
        ..Default::default()
    };
    let address = controller.kill();
    let began = Instant::now();
    let (status, body) = read(gateway.chat(cold()).await).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (503, &json!("controller_unavailable"))
    );
    assert!(began.elapsed() >= Duration::from_secs(5));
    let waiting = gateway.chat(cold());
    let back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        crate::controller::Controller::start_at(&address, said(worker.route("cold", "i"))).await
    };
    let (response, _controller) = tokio::join!(waiting, back);
    assert_eq!(response.status(), 200);
}
