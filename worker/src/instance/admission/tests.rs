use proptest::prelude::*;

use super::*;

fn rank(name: &str, priority: i32) -> Rank {
    Rank {
        key: Arc::from(name),
        user: Arc::from(""),
        priority,
    }
}

fn user(key: &str, user: &str) -> Rank {
    Rank {
        user: Arc::from(user),
        ..rank(key, 0)
    }
}

fn offer_as<T>(queue: &mut Admission<T>, rank: &Rank, item: T) -> bool {
    let place = queue.place(rank).is_some();
    if place {
        queue.push(rank, item);
    }
    place
}

/// Lines that are kept, of keys and of their users.
fn kept<T>(queue: &mut Admission<T>) -> usize {
    let users: usize = queue.keys.lines_mut().map(|(_, owner)| owner.users.known()).sum();
    users + queue.keys.known()
}

fn offer<T>(queue: &mut Admission<T>, name: &str, item: T) -> Option<usize> {
    offer_at(queue, name, 0, item)
}

fn offer_at<T>(queue: &mut Admission<T>, name: &str, priority: i32, item: T) -> Option<usize> {
    let rank = rank(name, priority);
    let place = queue.place(&rank)?;
    queue.push(&rank, item);
    Some(place)
}

/// Starts and ends whatever waits, one after the other.
fn order<T>(queue: &mut Admission<T>) -> Vec<T> {
    std::iter::from_fn(|| {
        let item = queue.next()?;
        queue.finished();
        Some(item)
    })
    .collect()
}

#[test]
fn a_crowd_of_one_key_does_not_delay_another() {
    let mut queue = Admission::new(1, 100);
    for item in 0..20 {
        offer(&mut queue, "crowd", ("crowd", item)).unwrap();
    }
    for item in 0..3 {
        offer(&mut queue, "one", ("one", item)).unwrap();
    }
    let order = order(&mut queue);
    assert_eq!(
        order[..6],
        [
            ("crowd", 0),
            ("one", 0),
            ("crowd", 1),
            ("one", 1),
            ("crowd", 2),
            ("one", 2)
        ],
        "keys take turns, each in its own order"
    );
    assert_eq!(order.len(), 23, "and alone a key gets everything");
}

#[test]
fn nobody_saves_up_while_away() {
    let mut queue = Admission::new(1, 100);
    for item in 0..10 {
        offer(&mut queue, "a", ("a", item)).unwrap();
    }
    for _ in 0..8 {
        queue.next().unwrap();
        queue.finished();
    }
    for item in 0..4 {
        offer(&mut queue, "late", ("late", item)).unwrap();
    }
    let order = order(&mut queue);
    let before_a_is_done = order.iter().take_while(|item| **item != ("a", 9)).count();
    assert!(before_a_is_done <= 4, "{order:?}");
}

#[test]
fn urgent_work_goes_first_within_its_key_and_weighs_more_between_keys() {
    let mut queue = Admission::new(1, 100);
    offer(&mut queue, "a", "a normal").unwrap();
    offer_at(&mut queue, "a", 2, "a urgent").unwrap();
    offer_at(&mut queue, "a", -1, "a later").unwrap();
    assert_eq!(order(&mut queue), ["a urgent", "a normal", "a later"]);

    for _ in 0..40 {
        offer_at(&mut queue, "urgent", 1, "urgent").unwrap();
        offer(&mut queue, "normal", "normal").unwrap();
    }
    let first: Vec<_> = order(&mut queue).into_iter().take(30).collect();
    let urgent = first.iter().filter(|item| **item == "urgent").count();
    assert!((19..=21).contains(&urgent), "twice the weight: {urgent} of 30");
}

#[test]
fn runs_up_to_the_target_and_queues_up_to_the_limit() {
    let mut queue = Admission::new(2, 3);
    for item in 0..2 {
        assert_eq!(offer(&mut queue, "", item), Some(0));
        assert_eq!(queue.next(), Some(item));
    }
    for item in 2..5 {
        assert_eq!(offer(&mut queue, "", item), Some(item - 1));
        assert_eq!(queue.next(), None);
    }
    assert_eq!(offer(&mut queue, "", 9), None);
    queue.finished();
    assert_eq!(queue.next(), Some(2));
    assert_eq!((queue.running(), queue.queued()), (2, 2));
}

#[test]
fn half_full_means_a_fair_share() {
    let mut queue = Admission::new(1, 8);
    offer(&mut queue, "a", 0).unwrap();
    queue.next();
    for item in 0..5 {
        offer(&mut queue, "a", item).unwrap();
    }
    // Alone, a key may have all; with a second one, half of it.
    offer(&mut queue, "b", 10).unwrap();
    assert!(offer(&mut queue, "a", 11).is_none());
    for item in 12..14 {
        offer(&mut queue, "b", item).unwrap();
    }
    assert_eq!(queue.queued(), 8);
    assert!(offer(&mut queue, "c", 15).is_none(), "full is full");
}

#[test]
fn no_room_keeps_the_place_and_waits_for_a_change() {
    let mut queue = Admission::new(4, 4);
    offer(&mut queue, "", 1).unwrap();
    offer(&mut queue, "", 2).unwrap();
    assert_eq!(queue.next(), Some(1));
    assert_eq!(queue.next(), Some(2));
    queue.put_back(2);
    assert_eq!(offer(&mut queue, "", 3), Some(2));
    assert_eq!(queue.next(), None);
    queue.finished();
    assert_eq!(queue.next(), Some(2));
    assert_eq!(queue.next(), Some(3));
}

#[test]
fn many_users_of_one_key_have_the_share_of_one_key() {
    let mut queue = Admission::new(1, 400);
    for number in 0..50 {
        for _ in 0..2 {
            queue.push(&user("crowd", &number.to_string()), "crowd");
        }
    }
    for _ in 0..20 {
        queue.push(&rank("one", 0), "one");
    }
    let first: Vec<_> = order(&mut queue).into_iter().take(30).collect();
    let ones = first.iter().filter(|item| **item == "one").count();
    assert_eq!(ones, 15, "{first:?}");
}

#[test]
fn users_take_turns_within_their_key() {
    let mut queue = Admission::new(1, 100);
    for item in 0..4 {
        queue.push(&user("key", "busy"), ("busy", item));
    }
    queue.push(&user("key", "ann"), ("ann", 0));
    queue.push(&rank("other", 0), ("other", 0));
    let order = order(&mut queue);
    assert_eq!(
        order[..4],
        [("busy", 0), ("other", 0), ("ann", 0), ("busy", 1)],
        "keys first, then users"
    );
}

#[test]
fn many_users_of_one_key_do_not_shrink_the_places_of_another() {
    let mut queue = Admission::new(1, 40);
    assert!(offer_as(&mut queue, &rank("x", 0), 0));
    queue.next();
    let crowd = (0..50).filter(|number| offer_as(&mut queue, &user("crowd", &number.to_string()), 0));
    assert_eq!(crowd.count(), 40, "alone, a key may have all");
    while queue.queued() > 20 {
        queue.finished();
        queue.next();
    }
    let one = (0..50).filter(|_| offer_as(&mut queue, &rank("one", 0), 0));
    assert_eq!(one.count(), 20, "half of it, whatever the other's users");
}

#[test]
fn one_user_does_not_take_all_places_of_its_key() {
    let mut queue = Admission::new(1, 40);
    assert!(offer_as(&mut queue, &user("key", "busy"), 0));
    queue.next();
    for _ in 0..30 {
        assert!(offer_as(&mut queue, &user("key", "busy"), 0));
    }
    assert!(offer_as(&mut queue, &user("key", "ann"), 0));
    assert!(!offer_as(&mut queue, &user("key", "busy"), 0), "it has its half");
    assert!((0..9).all(|_| offer_as(&mut queue, &user("key", "ann"), 0)));
}

/// What one key after the other leaves behind used to be kept for good, and gone through at every request.
#[test]
fn keys_and_users_that_came_once_are_forgotten() {
    for waiting in [0, 10] {
        for who in [|name: &str| rank(name, 0), |name: &str| user("key", name)] {
            let mut queue = Admission::new(1, usize::MAX);
            for number in 0..waiting {
                queue.push(&who(&format!("first {number}")), 0);
            }
            let mut most = 0;
            for number in 0..100_000 {
                queue.push(&who(&number.to_string()), number);
                queue.next().unwrap();
                queue.finished();
                if number % 64 == 0 {
                    most = most.max(kept(&mut queue));
                }
            }
            assert!(most <= 4 * (waiting + 2), "{most} lines while {waiting} wait");
        }
    }
}

/// A key that has had a turn used to wait until no new key came any more.
#[test]
fn new_keys_without_end_do_not_starve_one_that_had_its_turn() {
    let mut queue = Admission::new(1, 100);
    queue.push(&rank("one", 0), "one");
    assert_eq!(queue.next(), Some("one"));
    queue.push(&rank("one", 0), "one");
    for number in 0..5 {
        queue.push(&rank(&format!("first {number}"), 0), "new");
    }
    let before = (0..1000).take_while(|number| {
        queue.finished();
        queue.push(&rank(&number.to_string(), 0), "new");
        queue.next() != Some("one")
    });
    assert!(before.count() <= 14);
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u8, i32),
    Next,
    Finish,
    PutBack,
    Unblock,
    RemoveFirst,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..8, -6i32..6).prop_map(|(key, priority)| Step::Offer(key, priority)),
        3 => Just(Step::Next),
        2 => Just(Step::Finish),
        1 => Just(Step::PutBack),
        1 => Just(Step::Unblock),
        1 => Just(Step::RemoveFirst),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn nothing_is_lost_and_limits_hold(target in 1usize..4, limit in 0usize..8, steps in steps()) {
        let mut queue = Admission::new(target, limit);
        let mut running: Vec<(Rank, u64)> = Vec::new();
        let (mut accepted, mut ended, mut serial) = (0usize, 0usize, 0u64);
        for step in steps {
            match step {
                Step::Offer(name, priority) => {
                    serial += 1;
                    let rank = Rank {
                        user: Arc::from(if name % 2 == 0 { "" } else { "ann" }),
                        ..rank(&(name / 2).to_string(), priority)
                    };
                    if queue.place(&rank).is_some() {
                        queue.push(&rank, (rank.clone(), serial));
                        accepted += 1;
                    }
                }
                Step::Next => {
                    let could = !queue.is_blocked() && queue.running() < target && queue.queued() > 0;
                    let next = queue.next();
                    prop_assert_eq!(next.is_some(), could, "no place stays empty while anything waits");
                    running.extend(next);
                }
                Step::Finish => if running.pop().is_some() { queue.finished(); ended += 1; },
                Step::PutBack => if let Some((rank, item)) = running.pop() {
                    queue.put_back((rank, item));
                },
                Step::Unblock => queue.unblock(),
                Step::RemoveFirst => ended += usize::from(queue.remove(|_| true).is_some()),
            }
            prop_assert!(queue.running() <= target);
            prop_assert_eq!(queue.running(), running.len());
            // One more than the limit: a request that would start at once is in the queue until `next`;
            // and what was put back had been admitted.
            prop_assert!(queue.queued() <= limit + target);
            prop_assert_eq!(accepted, ended + queue.running() + queue.queued());
            let places: usize = queue.keys.lines_mut().map(|(_, owner)| owner.waiting).sum();
            prop_assert_eq!(places + queue.returned.len(), queue.queued());
        }
    }

    /// Between keys that always have something waiting, what each has got differs by no more than a request of each, by weight.
    #[test]
    fn shares_follow_the_weights(priorities in prop::collection::vec(-2i32..3, 2..5), picks in 20usize..200) {
        let mut queue = Admission::new(1, usize::MAX);
        for (key, priority) in priorities.iter().enumerate() {
            for _ in 0..picks {
                queue.push(&rank(&key.to_string(), *priority), key);
            }
        }
        let mut got = vec![0u64; priorities.len()];
        for _ in 0..picks {
            got[queue.next().unwrap()] += 1;
            queue.finished();
        }
        let time = |key: usize| got[key] * cost(priorities[key]);
        for (one, priority) in priorities.iter().enumerate() {
            for (other, theirs) in priorities.iter().enumerate() {
                // virtual times of keys that always wait are never further apart than one request of either
                let apart = time(one).abs_diff(time(other));
                prop_assert!(apart <= cost(*priority) + cost(*theirs), "{got:?} {priorities:?}");
            }
        }
    }
}
