//! Orders of the controller about files, and what it hears of them.
//!
//! ```text
//!   order ─► look · remove · list · check ─► one news
//!         └► fetch ─► a job of these files runs ─ yes ─► joins it ─┐
//!                     └ no ─► begins one ──────────────────────────┴► progress… ─► cached | failed, to every order of the job
//! ```
//!
//! A cancelled job's part of a file is removed, a paused one's kept: whoever fetches it next goes on from there.
//!
//! Invariants: of each order only the newest news waits, so that nothing grows while a session is slow; a job outlives the session that
//! began it, its orders do not.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_core::{Code, Error};
use muster_proto::{
    hub::{self, Revision},
    v1::{
        CachedFiles, CancelFetch, FetchFiles, FetchProgress, FilesCheck, FilesNews, FilesOrder,
        HubCheckpoint, HubListing, files_news::Kind as News, files_order::Kind as Order,
    },
};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    HubConfig,
    cache::Cache,
    check::check,
    fetch::{discard, fetch},
    meter::{Meter, Speed},
    remote::Remote,
    select::{projectors, variants},
};

/// Least time between two words on one download.
const PACE: Duration = Duration::from_millis(100);

/// Takes orders; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Desk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hub: HubConfig,
    state: Mutex<State>,
    /// There is news.
    fresh: Notify,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<HubCheckpoint, Job>,
    /// Jobs ever begun.
    begun: u64,
    news: BTreeMap<String, News>,
}

/// A download under way.
#[derive(Debug)]
struct Job {
    /// Tells it from a later one of the same files.
    number: u64,
    orders: Vec<String>,
    cancel: CancellationToken,
}

impl Desk {
    pub(crate) fn new(hub: HubConfig) -> Self {
        Self(Arc::new(Inner {
            hub,
            state: Mutex::default(),
            fresh: Notify::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// The cache it works on.
    pub(crate) fn cache(&self) -> &Cache {
        &self.0.hub.cache
    }

    /// A new session begins: nobody waits for the orders of the last one.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        state.news.clear();
        state.jobs.values_mut().for_each(|job| job.orders.clear());
    }

    /// Resolves when there may be news.
    pub(crate) async fn changed(&self) {
        self.0.fresh.notified().await;
    }

    /// The news there is.
    pub(crate) fn news(&self) -> Vec<FilesNews> {
        let news = std::mem::take(&mut self.lock().news);
        let news = news.into_iter().map(|(order_id, kind)| FilesNews {
            order_id,
            kind: Some(kind),
        });
        news.collect()
    }

    /// Begins to do what was ordered.
    pub(crate) fn obey(&self, order: FilesOrder) {
        let FilesOrder {
            order_id,
            checkpoint,
            kind,
        } = order;
        let checkpoint = checkpoint.unwrap_or_default();
        if !hub::is_repo(&checkpoint.repo) {
            let error = format!("`{}` is no repository", checkpoint.repo);
            return self.tell(order_id, News::Failed(Code::InvalidRequest.error(error).into()));
        }
        if let Err(error) = Revision::of(&checkpoint) {
            let error = Code::InvalidRequest.error(error.to_string());
            return self.tell(order_id, News::Failed(error.with_param("revision").into()));
        }
        match kind {
            Some(Order::Fetch(FetchFiles { refresh })) => self.fetch(order_id, checkpoint, refresh),
            Some(Order::Cancel(CancelFetch { keep })) => {
                if let Some(job) = self.lock().jobs.get(&checkpoint) {
                    job.cancel.cancel();
                }
                let desk = self.clone();
                self.0.tasks.spawn(async move {
                    if !keep {
                        discard(desk.cache(), &checkpoint, Duration::ZERO).await;
                    }
                    desk.tell_cached(order_id, checkpoint);
                });
            }
            Some(Order::Look(_)) => self.tell_cached(order_id, checkpoint),
            Some(Order::Remove(remove)) => {
                let desk = self.clone();
                let work = async move {
                    let cache = desk.cache().clone();
                    let removed = spawn_blocking(move || {
                        let freed_bytes = cache.remove(&checkpoint, &remove.keep)?;
                        let left = cache.cached_files(&checkpoint);
                        Ok::<_, std::io::Error>(CachedFiles { freed_bytes, ..left })
                    });
                    let news = match removed.await {
                        Ok(Ok(left)) => News::Cached(left),
                        Ok(Err(error)) => failed(&format!("the files cannot be removed: {error}")),
                        Err(panic) => failed(&panic.to_string()),
                    };
                    desk.tell(order_id, news);
                };
                self.0.tasks.spawn(work);
            }
            Some(Order::Check(_)) => {
                let desk = self.clone();
                let work = async move {
                    let checked = desk.check(&checkpoint).await;
                    let news = checked.map_or_else(|error| News::Failed(error.into()), News::Checked);
                    desk.tell(order_id, news);
                };
                self.0.tasks.spawn(work);
            }
            Some(Order::List(_)) => {
                let desk = self.clone();
                let work = async move {
                    let listed = desk.list(&checkpoint.repo).await;
                    desk.tell(
                        order_id,
                        listed.map_or_else(|error| News::Failed(error.into()), News::Listing),
                    );
                };
                self.0.tasks.spawn(work);
            }
            None => self.tell(
                order_id,
                News::Failed(
                    Code::InvalidRequest
                        .error("the order is of no kind known here")
                        .into(),
                ),
            ),
        }
    }

    fn tell_cached(&self, order_id: String, checkpoint: HubCheckpoint) {
        let desk = self.clone();
        let work = async move {
            let cache = desk.cache().clone();
            let news = match spawn_blocking(move || cache.cached_files(&checkpoint)).await {
                Ok(found) => News::Cached(found),
                Err(panic) => failed(&panic.to_string()),
            };
            desk.tell(order_id, news);
        };
        self.0.tasks.spawn(work);
    }

    async fn check(&self, checkpoint: &HubCheckpoint) -> Result<FilesCheck, Error> {
        let remote = Remote::new(self.0.hub.clone())?;
        check(self.cache(), &remote, checkpoint).await
    }

    async fn list(&self, repo: &str) -> Result<HubListing, Error> {
        let listing = Remote::new(self.0.hub.clone())?
            .list(repo, &Revision::default())
            .await?;
        Ok(HubListing {
            repo: repo.to_owned(),
            variants: variants(&listing.files),
            mmproj_files: projectors(&listing.files),
        })
    }

    fn fetch(&self, order_id: String, checkpoint: HubCheckpoint, refresh: bool) {
        if checkpoint.repo == hub::UPLOADS {
            let error = format!(
                "{} was uploaded, and is no longer here: upload it again",
                checkpoint.variant
            );
            return self.tell(order_id, News::Failed(Code::FileNotFound.error(error).into()));
        }
        let mut state = self.lock();
        if let Some(job) = state
            .jobs
            .get_mut(&checkpoint)
            .filter(|job| !job.cancel.is_cancelled())
        {
            job.orders.push(order_id);
            return;
        }
        let cancel = CancellationToken::new();
        state.begun += 1;
        let number = state.begun;
        let job = Job {
            number,
            orders: vec![order_id],
            cancel: cancel.clone(),
        };
        // One that is being cancelled tells its orders at once: they are not heard of again.
        if let Some(old) = state.jobs.insert(checkpoint.clone(), job) {
            for order in old.orders {
                state.news.insert(order, News::Failed(cancelled().into()));
            }
        }
        drop(state);
        let desk = self.clone();
        self.0
            .tasks
            .spawn(async move { desk.work(checkpoint, refresh, number, cancel).await });
    }

    /// Runs a job to its end.
    async fn work(&self, checkpoint: HubCheckpoint, refresh: bool, number: u64, cancel: CancellationToken) {
        let (meter, mut speed) = (Meter::default(), Speed::default());
        let mut progress = meter.subscribe();
        let work = async {
            let remote = Remote::new(self.0.hub.clone())?;
            fetch(self.cache(), &remote, &checkpoint, refresh, &meter).await
        };
        tokio::pin!(work);
        tracing::info!(repo = checkpoint.repo, variant = checkpoint.variant, "fetching");
        let mut quiet_until = Instant::now();
        let result = loop {
            let paced = async {
                sleep_until(quiet_until).await;
                progress.changed().await
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => break Err(cancelled()),
                result = &mut work => break result,
                Ok(()) = paced => {
                    let now = Instant::now();
                    let told = FetchProgress {
                        bytes_per_second: speed.look(now, meter.received()),
                        ..progress.borrow_and_update().clone()
                    };
                    self.tell_job(&checkpoint, &News::Progress(told));
                    quiet_until = now + PACE;
                }
            }
        };
        let news = match result {
            Ok(found) => {
                tracing::info!(
                    repo = checkpoint.repo,
                    variant = checkpoint.variant,
                    bytes = found.size_bytes,
                    "fetched"
                );
                News::Cached(found)
            }
            Err(error) => {
                tracing::warn!(repo = checkpoint.repo, variant = checkpoint.variant, %error, "not fetched");
                News::Failed(error.into())
            }
        };
        let mut state = self.lock();
        // A cancelled one may have been replaced: its orders have been told.
        if state
            .jobs
            .get(&checkpoint)
            .is_some_and(|job| job.number == number)
            && let Some(job) = state.jobs.remove(&checkpoint)
        {
            for order in job.orders {
                state.news.insert(order, news.clone());
            }
        }
        drop(state);
        self.0.fresh.notify_one();
    }

    fn tell_job(&self, checkpoint: &HubCheckpoint, news: &News) {
        let mut state = self.lock();
        let State {
            jobs, news: waiting, ..
        } = &mut *state;
        for order in jobs.get(checkpoint).into_iter().flat_map(|job| &job.orders) {
            waiting.insert(order.clone(), news.clone());
        }
        drop(state);
        self.0.fresh.notify_one();
    }

    fn tell(&self, order: String, news: News) {
        self.lock().news.insert(order, news);
        self.0.fresh.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Never held across a wait: entries of maps are moved, no more.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(why: &str) -> News {
    News::Failed(Code::Internal.error(why).into())
}

fn cancelled() -> Error {
    Code::DownloadCancelled.error("the download was ended by an operator")
}

#[cfg(test)]
mod tests;
