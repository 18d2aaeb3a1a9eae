//! Waiting for conditions with a deadline; never for a time.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// Asks `probe` until it gives a value, with a growing pause from 1 ms on; the value and how long it took.
///
/// # Panics
/// There is no value within `limit`: the message names `what` and the last reason.
pub async fn eventually<T, E: fmt::Debug>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, E>,
) -> (T, Duration) {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match probe().await {
            Ok(value) => return (value, started.elapsed()),
            Err(why) if started.elapsed() >= limit => {
                panic!("not within {limit:?}: {what}; last seen: {why:?}")
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Gives `future` a deadline.
///
/// # Panics
/// It takes longer than `limit`.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}
