//! Faults that a test asks for: which requests they hit, and what happens to them.
//!
//! A fault is one flat JSON object, at start (`--fault kind=truncate,share=0.1`) and at run time
//! (`POST /_testkit/faults`). Which requests it hits is decided by its own count of matching
//! requests (`nth`, `every`), or by a draw keyed by (seed, object, range, attempt), so that runs
//! repeat; without any of the three it hits all. `times` bounds it.

use serde::{Deserialize, Serialize};

use super::counters::Class;
use crate::draw;

/// What happens to a request that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Answers with `status` (default 500; 503 is S3's `SlowDown`) and `retry_after_s`, if given.
    Status,
    /// Answers 503 `SlowDown` to what exceeds `per_s` requests per second.
    RateLimit,
    /// Waits `delay_ms` before the head, on top of the profile.
    Slow,
    /// Never answers.
    Hang,
    /// Closes the connection (no reset) after the share `at` of the body (default 0.5).
    Truncate,
    /// Sends nothing more after the share `at` of the body (default 0.5), and never ends.
    Stall,
    /// Resets the connection after the share `at` of the body; before the head when `at` is 0
    /// (the default).
    Reset,
    /// Answers as if the object had been replaced since it was listed: other bytes, other ETag.
    Changed,
    /// Alters the byte at the share `at` of the body (default 0.5); the ETag stays.
    Flip,
    /// Answers with fewer bytes than asked for (the share `at`, default 0.5), in a well-formed
    /// response whose `Content-Length` agrees with its body.
    Short,
    /// Ignores the range and answers 200 with the whole object.
    Whole,
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: Kind,
    /// The classes of requests it may hit (default: GET of objects only).
    #[serde(default = "gets")]
    pub on: Vec<Class>,
    /// Only objects whose `BUCKET/KEY` contains this (default: all).
    #[serde(default)]
    pub matching: String,
    /// Only the n-th matching request, counted from 1.
    #[serde(default)]
    pub nth: Option<u64>,
    /// Each n-th matching request.
    #[serde(default)]
    pub every: Option<u64>,
    /// This share of the requests, drawn by the seed; 0 to 1.
    #[serde(default)]
    pub share: Option<f64>,
    /// At most so many times (default: no bound).
    #[serde(default)]
    pub times: Option<u64>,
    /// Only the first n requests for the same range of an object, so that a retry succeeds.
    #[serde(default)]
    pub attempts: Option<u64>,
    /// Where in the body, as a share of it; see [`Kind`].
    #[serde(default)]
    pub at: Option<f64>,
    /// The status of [`Kind::Status`].
    #[serde(default)]
    pub status: Option<u16>,
    /// `Retry-After` of [`Kind::Status`] and [`Kind::RateLimit`], in seconds.
    #[serde(default)]
    pub retry_after_s: Option<u64>,
    /// The delay of [`Kind::Slow`] in milliseconds (default 1000).
    #[serde(default)]
    pub delay_ms: Option<f64>,
    /// The limit of [`Kind::RateLimit`] (default 100).
    #[serde(default)]
    pub per_s: Option<f64>,
}

fn gets() -> Vec<Class> {
    vec![Class::Get]
}

impl Fault {
    /// A fault that hits every GET; narrow it down through its fields.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            on: gets(),
            matching: String::new(),
            nth: None,
            every: None,
            share: None,
            times: None,
            attempts: None,
            at: None,
            status: None,
            retry_after_s: None,
            delay_ms: None,
            per_s: None,
        }
    }

    /// Reads `kind=truncate,share=0.1,at=0.5,on=get+list`, or the JSON form.
    ///
    /// # Errors
    ///
    /// A sentence naming what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault: Self = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|e| format!("{text:?} is not a fault: {e}"))?
        } else {
            let mut fields = serde_json::Map::new();
            for field in text.split(',') {
                let (name, value) = field
                    .split_once('=')
                    .ok_or_else(|| format!("{field:?}: write a fault as kind=...,name=value,..."))?;
                let value = if name == "on" {
                    value.split('+').collect()
                } else if name == "matching" {
                    value.into()
                } else {
                    serde_json::from_str(value).unwrap_or_else(|_| value.into())
                };
                fields.insert(name.into(), value);
            }
            serde_json::from_value(fields.into()).map_err(|e| format!("{text:?} is not a fault: {e}"))?
        };
        fault.check()?;
        Ok(fault)
    }

    /// Checks that all numbers make sense.
    ///
    /// # Errors
    ///
    /// A sentence naming the number that does not.
    pub fn check(&self) -> Result<(), String> {
        let within = |share: Option<f64>| share.is_none_or(|share| (0.0..=1.0).contains(&share));
        if !within(self.share) || !within(self.at) {
            return Err("share and at must be between 0 and 1".into());
        }
        if self.nth == Some(0) || self.every == Some(0) {
            return Err("nth and every count from 1".into());
        }
        if self.delay_ms.is_some_and(|delay| !(0.0..=1e9).contains(&delay))
            || self.per_s.is_some_and(|rate| rate.is_nan() || rate <= 0.0)
        {
            return Err("delay_ms must not be negative, per_s must be above 0".into());
        }
        if self.status.is_some_and(|status| !(400..600).contains(&status)) {
            return Err("status must be between 400 and 599".into());
        }
        Ok(())
    }
}

/// A request as faults see it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its class.
    pub class: Class,
    /// `BUCKET/KEY`.
    pub name: &'a str,
    /// The hash of (seed, object, range).
    pub hash: u64,
    /// How many requests for the same range of the object came before.
    pub attempt: u64,
    /// Seconds since the server started.
    pub now_s: f64,
}

struct Armed {
    fault: Fault,
    seen: u64,
    hit: u64,
    tokens: f64,
    refilled_s: f64,
}

/// The faults of a server, in order.
#[derive(Default)]
pub struct Faults(Vec<Armed>);

impl Faults {
    /// Adds a fault.
    pub fn add(&mut self, fault: Fault) {
        let tokens = fault.per_s.unwrap_or(100.0);
        self.0.push(Armed {
            fault,
            seen: 0,
            hit: 0,
            tokens,
            refilled_s: 0.0,
        });
    }

    /// Removes all faults.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Each fault with how often it matched and how often it hit.
    #[must_use]
    pub fn list(&self) -> Vec<(Fault, u64, u64)> {
        self.0
            .iter()
            .map(|armed| (armed.fault.clone(), armed.seen, armed.hit))
            .collect()
    }

    /// The faults that hit this request.
    #[must_use]
    pub fn hits(&mut self, target: &Target<'_>) -> Vec<Fault> {
        let mut hits = Vec::new();
        for (index, armed) in self.0.iter_mut().enumerate() {
            if armed.matches(index as u64, target) {
                armed.hit += 1;
                hits.push(armed.fault.clone());
            }
        }
        hits
    }
}

impl Armed {
    fn matches(&mut self, index: u64, target: &Target<'_>) -> bool {
        let fault = &self.fault;
        if !fault.on.contains(&target.class) || !target.name.contains(&fault.matching) {
            return false;
        }
        self.seen += 1;
        if fault.times.is_some_and(|times| self.hit >= times)
            || fault.attempts.is_some_and(|attempts| target.attempt >= attempts)
            || fault.nth.is_some_and(|nth| self.seen != nth)
            || fault.every.is_some_and(|every| !self.seen.is_multiple_of(every))
        {
            return false;
        }
        if let Some(share) = fault.share {
            let draw = draw::attempt(target.hash ^ draw::mix(index + 1), target.attempt);
            if draw::unit(draw) >= share {
                return false;
            }
        }
        if fault.kind == Kind::RateLimit {
            // A token bucket that holds one second's worth.
            let per_s = fault.per_s.unwrap_or(100.0);
            let gained = (target.now_s - self.refilled_s).max(0.0) * per_s;
            self.tokens = (self.tokens + gained).min(per_s.max(1.0));
            self.refilled_s = target.now_s;
            if self.tokens >= 1.0 {
                self.tokens -= 1.0;
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, attempt: u64) -> Target<'_> {
        Target {
            class: Class::Get,
            name,
            hash: draw::name(1, name),
            attempt,
            now_s: 0.0,
        }
    }

    fn count(fault: &str, requests: u64) -> usize {
        let mut faults = Faults::default();
        faults.add(Fault::parse(fault).unwrap());
        (0..requests)
            .filter(|i| !faults.hits(&target(&format!("b/{i}"), 0)).is_empty())
            .count()
    }

    #[test]
    fn nth_every_share_and_times_choose_requests() {
        assert_eq!(count("kind=status,status=503", 10), 10);
        assert_eq!(count("kind=status,nth=3", 10), 1);
        assert_eq!(count("kind=stall,every=3", 10), 3);
        assert_eq!(count("kind=flip,times=4", 10), 4);
        assert_eq!(count("kind=reset,on=list", 10), 0);
        assert_eq!(count("kind=reset,matching=b/7", 10), 1);
        let share = count("kind=truncate,share=0.1", 10_000);
        assert!((900..1100).contains(&share), "{share}");
        assert_eq!(share, count("kind=truncate,share=0.1", 10_000));
    }

    #[test]
    fn a_rate_limit_refuses_what_exceeds_it() {
        assert_eq!(count("kind=rate_limit,per_s=4", 10), 6);
    }

    #[test]
    fn only_first_attempts_can_be_hit() {
        let mut faults = Faults::default();
        faults.add(Fault::parse("kind=status,attempts=1").unwrap());
        assert_eq!(faults.hits(&target("b/k", 0)).len(), 1);
        assert_eq!(faults.hits(&target("b/k", 1)).len(), 0);
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        for text in ["", "kind=explode", "kind=flip,shar=0.1", "kind=flip,share=2", "flip"] {
            assert!(Fault::parse(text).is_err(), "{text}");
        }
    }
}
