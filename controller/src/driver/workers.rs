//! Handles what worker sessions bring: joins and their fencing, reports, outcomes, ends (PROTOCOL.md 3, 5).

use std::sync::atomic::Ordering;

use muster_core::{Code, Error, Runtime, SessionId, WorkerId};
use muster_policy::{Event, Outcome};
use muster_proto::{PROTOCOL_VERSION, v1};
use tokio::sync::mpsc;

use super::{
    Driver,
    inbox::{Join, JoinAnswer, MAILBOX},
    mirror::Noted,
    sessions::Session,
};
use crate::{
    convert::report::{facts, outcome, report},
    state,
};

impl Driver {
    /// Handles the next message of a session. Returns false if there is none, or if the session is not in force.
    pub(super) fn session_said(&mut self, session: &SessionId) -> bool {
        let Some((worker, kind)) = self.sessions.said(session) else {
            return false;
        };
        self.heard(&worker, *kind);
        true
    }

    /// Handles all messages of a session up to an outcome.
    pub(super) fn session_answered(&mut self, session: &SessionId) {
        while let Some((worker, kind)) = self.sessions.said(session) {
            let answer = matches!(*kind, v1::worker_message::Kind::Outcome(_));
            self.heard(&worker, *kind);
            if answer {
                return;
            }
        }
    }

    /// Handles the end of a session's task. Earlier messages are read first: a goodbye must not count as a loss.
    pub(super) fn session_ended(&mut self, session: &SessionId) {
        while self.session_said(session) {}
        if let Some(worker) = self.sessions.worker(session) {
            tracing::warn!(%worker, "session lost");
            self.lost(&worker);
        }
    }

    /// Tells policy, while the fleet settles, whether workers are about to join; they are taken before the time is up (PROTOCOL.md 2).
    pub(super) fn tell_joins(&mut self) {
        if self.fleet.settled() {
            return;
        }
        // A worker that is refused again and again is not waited for without limit.
        let longest = self.config.policy.settle + self.config.policy.worker_wait;
        let any = self.inbox.joining.load(Ordering::Relaxed) > 0 && self.started.elapsed() < longest;
        if self.joins_told != any {
            self.joins_told = any;
            self.feed(Event::JoinsWait { any });
        }
    }

    pub(super) fn join(&mut self, join: Join) {
        let Join {
            session,
            joining,
            mut hello,
            commands,
            end,
            pulse,
            silent,
            reply,
        } = join;
        drop(joining);
        self.tell_joins();
        // The session's task has ended meanwhile.
        if reply.is_closed() {
            return;
        }
        for device in &mut hello.devices {
            self.config.devices.apply(device);
        }
        let (mailbox, said) = mpsc::channel(MAILBOX);
        if let Err(refusal) = self.admit(&session, &hello, silent.as_ref()) {
            drop(reply.send(refusal));
            return;
        }
        let epoch = self.epoch.subscribe();
        // If the task ends now, it reports that: its session opens and closes at once.
        drop(reply.send(JoinAnswer::Accepted { epoch, mailbox }));
        // `admit` has checked the facts.
        let Ok(facts) = facts(&hello) else { return };
        let worker = facts.id.clone();
        let (boot, host) = (hello.boot_id.clone(), facts.host.clone());
        self.devices_changed = true;
        let id = session;
        self.sessions.open(
            worker.clone(),
            Session {
                id,
                boot,
                commands,
                end,
                pulse: pulse.clone(),
                said,
                outstanding: std::collections::BTreeMap::new(),
            },
        );
        let (report, malformed) = report(hello.full.as_ref().unwrap_or(&v1::WorkerReport::default()));
        complain(&worker, &malformed);
        let hosted = hello.full.iter().flat_map(|full| &full.instances);
        hosted.for_each(|status| self.ghosts.note(status));
        // An instance that it does not report has ended.
        self.may_have_ended(&worker);
        let noted = self.mirror.joined(&facts, hello, pulse, &mut self.observed);
        if facts.runtimes.contains_key(&Runtime::LlamaServer) && self.catalogue.server_found() {
            self.catalogue_changed();
        }
        self.feed(Event::WorkerJoined { facts, report });
        // Drop the orders of the session that this one replaced.
        self.files_lost(&worker);
        self.take_note(noted);
        // It may see engines of lost workers.
        if !self.fleet.ghosts_of_host(&host).is_empty() {
            self.ghosts.begin(host);
        }
        self.files_joined(&worker);
    }

    /// Decides whether a worker may have its session, and ends an older one if so. Otherwise returns the answer.
    fn admit(
        &mut self,
        session: &SessionId,
        hello: &v1::Hello,
        silent: Option<&SessionId>,
    ) -> Result<(), JoinAnswer> {
        let facts = match facts(hello) {
            Ok(facts) => facts,
            Err(error) => {
                return Err(JoinAnswer::Rejected(
                    Code::InvalidRequest.error(error.to_string()),
                ));
            }
        };
        if !(hello.protocol_min..=hello.protocol_max).contains(&PROTOCOL_VERSION) {
            let text = format!(
                "the worker speaks protocol {} to {}, this controller {PROTOCOL_VERSION}",
                hello.protocol_min, hello.protocol_max
            );
            return Err(JoinAnswer::Rejected(Code::InvalidRequest.error(text)));
        }
        if let Err(error) = self.outbid(&facts.id, hello.highest_epoch_seen) {
            tracing::error!(%error, "a worker is refused");
            return Err(JoinAnswer::Rejected(error));
        }
        if let Some(old) = self.sessions.of(&facts.id) {
            let same_boot = old.boot == hello.boot_id;
            if !same_boot && silent != Some(&old.id) {
                return Err(JoinAnswer::Occupied {
                    session: old.id.clone(),
                    pulse: old.pulse.clone(),
                });
            }
            tracing::info!(worker = %facts.id, old = %old.id, new = %session, same_boot, "session replaced");
            if same_boot {
                // It joins again at once, so the states of its instances are not in doubt.
                self.close_session(&facts.id);
            } else {
                self.lost(&facts.id);
            }
        }
        Ok(())
    }

    /// Raises our epoch above the one that a worker has seen, since the worker would refuse a lower one (PROTOCOL.md 5). An absurdly high
    /// epoch, which no controller can have had, is refused: accepting it once would leave no higher numbers.
    fn outbid(&mut self, worker: &WorkerId, seen: u64) -> Result<(), Error> {
        let mine = *self.epoch.borrow();
        let Some(epoch) = state::outbid(mine, seen) else {
            let text = format!(
                "worker {worker} says that it has seen a controller of the epoch {seen}, which none can have had beside this one of {mine}: restart the \
                 worker, which forgets it"
            );
            return Err(Code::InvalidRequest.error(text));
        };
        if epoch == mine {
            return Ok(());
        }
        self.writer.epoch(epoch);
        tracing::warn!(
            mine,
            seen,
            epoch,
            "a worker has seen a newer controller; the epoch is raised"
        );
        self.epoch.send_replace(epoch);
        self.routes.set_epoch(epoch);
        Ok(())
    }

    fn heard(&mut self, worker: &WorkerId, kind: v1::worker_message::Kind) {
        use v1::worker_message::Kind;
        match kind {
            Kind::Report(wire) => self.reported(worker, &wire),
            Kind::Outcome(wire) => {
                if let Some(ghost) = self.ghosts.answered(&wire.command_id) {
                    self.looked_at(ghost, &wire);
                    return;
                }
                match self.sessions.answered(worker, &wire.command_id) {
                    Some(id) => {
                        log_refusal(worker, &wire);
                        self.feed(Event::Outcome {
                            id,
                            outcome: outcome(&wire),
                        });
                    }
                    None => {
                        tracing::debug!(%worker, command = wire.command_id, "an outcome that nobody waits for")
                    }
                }
            }
            Kind::Files(news) => self.files_said(worker, news),
            Kind::Goodbye(goodbye) => {
                tracing::info!(%worker, reason = goodbye.reason, "worker left");
                self.close_session(worker);
                self.may_have_ended(worker);
                self.feed(Event::WorkerLeft {
                    worker: worker.clone(),
                });
                self.files_lost(worker);
                self.files_gone(worker);
                self.writer.away(worker, true);
            }
            // The session itself handles signs of life, and ignores a second introduction.
            Kind::Heartbeat(_) | Kind::Hello(_) => {}
        }
    }

    /// Handles commands whose answer did not come: their outcome is unknown (PROTOCOL.md 3). Policy asks for a new session unless a report
    /// tells the state.
    pub(super) fn commands_overdue(&mut self) {
        for (worker, id) in self.sessions.overdue() {
            tracing::warn!(%worker, command = id.0, "a command was not answered in time, by a worker that goes on");
            self.feed(Event::Outcome {
                id,
                outcome: Outcome::Unknown,
            });
        }
    }

    fn reported(&mut self, worker: &WorkerId, wire: &v1::WorkerReport) {
        let (report, malformed) = report(wire);
        complain(worker, &malformed);
        wire.instances.iter().for_each(|status| self.ghosts.note(status));
        let noted = self.mirror.reported(worker, wire, &mut self.observed);
        if let Some(draining) = wire.draining {
            self.feed(Event::WorkerDraining {
                worker: worker.clone(),
                draining,
            });
        }
        self.feed(Event::WorkerReported {
            worker: worker.clone(),
            report,
        });
        self.take_note(noted);
    }

    fn take_note(&mut self, noted: Noted) {
        self.changed_models.extend(noted.changed);
        self.used_models.extend(noted.used);
        if !noted.learned.is_empty() {
            self.writer.observed(&self.observed);
            let learned = self.catalogue.with_hashes(&noted.learned);
            self.models_changed(learned);
        }
    }

    fn lost(&mut self, worker: &WorkerId) {
        self.close_session(worker);
        self.writer.away(worker, false);
        self.feed(Event::WorkerLost {
            worker: worker.clone(),
        });
        self.files_lost(worker);
        if let Some(known) = self.mirror.worker(worker.as_str()) {
            self.ghosts.begin(known.host.clone());
        }
    }

    /// Marks the worker's instances to be checked once policy has handled the news: those that policy no longer knows are removed here too.
    pub(super) fn may_have_ended(&mut self, worker: &WorkerId) {
        let hosted = self.mirror.hosted(worker);
        self.ended.extend(hosted.cloned());
    }

    /// Closes a session. The caller tells policy at once.
    fn close_session(&mut self, worker: &WorkerId) {
        self.mirror.disconnected(worker.as_str());
        self.ghosts.unanswered_by(worker);
        self.sessions.close(worker);
    }
}

fn complain(worker: &WorkerId, malformed: &[(String, crate::convert::report::Malformed)]) {
    for (instance, error) in malformed {
        tracing::error!(%worker, instance, %error, "what cannot be understood is left out");
    }
}

fn log_refusal(worker: &WorkerId, wire: &v1::Outcome) {
    use v1::outcome::Kind;
    match &wire.kind {
        Some(Kind::Refused(refused)) => {
            tracing::debug!(%worker, reason = refused.reason().as_str_name(), message = refused.message, "refused");
        }
        Some(Kind::Failed(error)) => tracing::warn!(%worker, %error, "a command failed"),
        Some(Kind::Done(_)) | None => {}
    }
}
