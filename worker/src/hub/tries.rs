//! Trouble with the hub, and how often one tries again.

use std::time::Duration;

use muster_core::Error;
use muster_proto::pauses::Pauses;
use tokio::time::sleep;

/// Longest wait that a hub may ask for.
const PATIENCE: Duration = Duration::from_secs(300);

/// Why something did not come, and whether it may come later.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: Error,
    pub(super) again: Again,
}

impl Trouble {
    /// Asking again is of no use.
    pub(super) fn never(error: Error) -> Self {
        Self {
            error,
            again: Again::Never,
        }
    }

    /// It may come if it is asked for again.
    pub(super) fn soon(error: Error) -> Self {
        Self {
            error,
            again: Again::Soon,
        }
    }
}

/// Whether to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    Soon,
    /// After this long, as the hub says.
    After(Duration),
}

/// How often, and with which pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Questions about a repository, asked in all.
    pub(crate) questions: u32,
    /// Requests for content in a row that bring nothing.
    pub(crate) content: u32,
    /// The first pause and the longest.
    pub(crate) pauses: (Duration, Duration),
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            questions: 4,
            content: 8,
            pauses: (Duration::from_millis(500), Duration::from_secs(30)),
        }
    }
}

/// Tries of one thing.
#[derive(Debug)]
pub(super) struct Tries {
    most: u32,
    left: u32,
    pauses: Pauses,
}

impl Tries {
    pub(super) fn new(most: u32, range: (Duration, Duration)) -> Self {
        Self {
            most,
            left: most,
            pauses: Pauses::new(range),
        }
    }

    /// Something came: all tries are there again.
    pub(super) fn refill(&mut self) {
        self.left = self.most;
        self.pauses.reset();
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The trouble itself, if trying again is of no use, or was often enough.
    pub(super) async fn again(&mut self, trouble: Trouble) -> Result<(), Error> {
        let Trouble { error, again } = trouble;
        self.left = self.left.saturating_sub(1);
        let own = self.pauses.take();
        let pause = match again {
            Again::Never => return Err(error),
            Again::Soon => own,
            Again::After(asked) if asked > PATIENCE => return Err(error),
            Again::After(asked) => asked.max(own),
        };
        if self.left == 0 {
            return Err(error.with_detail("tries", self.most));
        }
        tracing::warn!(%error, pause_ms = pause.as_millis(), "the hub is asked again");
        sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_core::Code;

    use super::*;

    fn trouble(again: Again) -> Trouble {
        Trouble {
            error: Code::HubUnavailable.error("away"),
            again,
        }
    }

    #[tokio::test]
    async fn it_is_asked_so_often_and_as_late_as_the_hub_says() {
        let range = (Duration::from_millis(1), Duration::from_millis(2));
        let mut tries = Tries::new(2, range);
        assert!(tries.again(trouble(Again::Soon)).await.is_ok());
        tries.refill();
        let started = std::time::Instant::now();
        assert!(
            tries
                .again(trouble(Again::After(Duration::from_millis(50))))
                .await
                .is_ok()
        );
        assert!(started.elapsed() >= Duration::from_millis(50));
        let error = tries.again(trouble(Again::Soon)).await.unwrap_err();
        assert_eq!(error.details["tries"], "2");
        let mut tries = Tries::new(9, range);
        assert!(tries.again(trouble(Again::Never)).await.is_err());
        assert!(tries.again(trouble(Again::After(2 * PATIENCE))).await.is_err());
    }
}
