//! Requests that a worker refuses or never answers.

use muster_core::Code;
use muster_proto::v1::{Ready, RouteState, ensure_loaded_event::Kind};
use serde_json::json;

use crate::{
    gateway::{Gateway, read},
    worker::{Worker, refuses, says},
};

#[tokio::test]
async fn a_stale_instance_is_left_for_another_one() {
    let stale = Worker::start(|_| refuses(Code::StaleInstance)).await;
    let good = Worker::start(|_| says(&["hi"])).await;
    let (gateway, controller) = Gateway::with(vec![stale.route("m", "a"), good.route("m", "b")]).await;
    for index in 0..20 {
        let message = json!([{"role": "user", "content": format!("{index}")}]);
        assert_eq!(gateway.chat(json!({"messages": message})).await.status(), 200);
    }
    assert_eq!(good.starts().len(), 20);
    assert!(!stale.starts().is_empty());
    let ids: std::collections::HashSet<_> = good.starts().into_iter().map(|start| start.request_id).collect();
    assert!(stale.starts().iter().all(|start| ids.contains(&start.request_id)));
    assert!(controller.heard().wishes.is_empty());
}

#[tokio::test]
async fn when_all_are_stale_the_controller_is_asked_to_avoid_them() {
    let stale = Worker::start(|_| refuses(Code::StaleInstance)).await;
    let good = Worker::start(|_| says(&["hi"])).await;
    let (gateway, controller) = Gateway::with(vec![stale.route("m", "a")]).await;
    let ready = Kind::Ready(Ready {
        route: Some(good.route("m", "b")),
    });
    controller.say(|said| said.answer = Some(ready));
    assert_eq!(gateway.chat(json!({})).await.status(), 200);
    let wish = &controller.heard().wishes[0];
    assert_eq!(wish.avoid_instances, ["a"]);
    assert!(wish.avoid_workers.is_empty(), "its worker is not to blame");
    assert_eq!(good.starts()[0].hold_id, wish.ensure_id);
}

#[tokio::test]
async fn nothing_is_sent_more_than_four_times() {
    let stale = Worker::start(|_| refuses(Code::StaleInstance)).await;
    let routes = (0..8).map(|index| stale.route("m", &index.to_string())).collect();
    let (gateway, _controller) = Gateway::with(routes).await;
    let response = gateway.chat(json!({})).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, body) = read(response).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (503, &json!("stale_instance"))
    );
    assert_eq!(stale.starts().len(), 4);
}

#[tokio::test]
async fn a_worker_that_does_not_listen_is_left_for_another_one() {
    let dead = Worker::start(|_| says(&["never"])).await;
    let good = Worker::start(|_| says(&["hi"])).await;
    let routes = vec![dead.route("m", "a"), good.route("m", "b")];
    dead.kill();
    let (gateway, _controller) = Gateway::with(routes).await;
    for index in 0..10 {
        let message = json!([{"role": "user", "content": format!("{index}")}]);
        assert_eq!(gateway.chat(json!({"messages": message})).await.status(), 200);
    }
}

#[tokio::test]
async fn a_silent_worker_is_cancelled_and_then_avoided() {
    let silent = Worker::start(|_| Vec::new()).await;
    let good = Worker::start(|_| says(&["hi"])).await;
    let mut last = good.route("m", "b");
    last.state = RouteState::Suspect.into();
    let (gateway, controller) = Gateway::with(vec![silent.route("m", "a"), last]).await;
    assert_eq!(gateway.chat(json!({})).await.status(), 200);
    silent.cancelled().await;
    // From now on the suspect is as good as the silent one, and a ready one is better.
    controller.say(|said| said.routes[1].state = RouteState::Ready.into());
    let once = async {
        while silent.starts().len() == 1 && good.starts().len() < 4 {
            assert_eq!(gateway.chat(json!({})).await.status(), 200);
        }
    };
    crate::within(once).await;
}

#[tokio::test]
async fn a_full_instance_is_left_for_one_with_room() {
    let full = Worker::start(|_| refuses(Code::QueueFull)).await;
    let good = Worker::start(|_| says(&["hi"])).await;
    let (gateway, controller) = Gateway::with(vec![full.route("m", "a"), good.route("m", "b")]).await;
    for index in 0..10 {
        let message = json!([{"role": "user", "content": format!("{index}")}]);
        assert_eq!(gateway.chat(json!({"messages": message})).await.status(), 200);
    }
    assert!(controller.heard().wishes.is_empty());
}

#[tokio::test]
async fn thinking_is_refused_where_the_model_cannot_switch_it() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, body) = read(gateway.chat(json!({"thinking": "disabled"})).await).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (400, &json!("thinking_unsupported"))
    );
    assert_eq!(gateway.chat(json!({"thinking": "default"})).await.status(), 200);
}
