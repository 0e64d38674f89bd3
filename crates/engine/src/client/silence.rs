//! An agent that says nothing while somebody waits: stopped, or stuck.
//!
//! A long wait alone says little, since a store may be slow. Who waits and hears nothing therefore asks for an answer that costs nothing
//! ([`Call::Ping`](crate::calls::Call::Ping)), and where that doesn't come either, it is reported: once, and again whenever the silence has lasted twice as
//! long. Any byte ends it. Only time in which somebody waited counts, so that a process that was stopped itself blames nobody.
//!
//! What is to be reported lies in one queue of the process ([`reports`]): whoever waits next takes it out in its pulse, and passes it on.

use crate::protocol::Trouble;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nothing for so long, and it is asked. Batches come more often; a healthy agent answers within a millisecond.
const ASK_AFTER: Duration = Duration::from_secs(3);
/// Nothing for so long, and it is reported: as the watchdog's limit, [`STALL_S`](crate::calls::STALL_S).
const TELL_AFTER: Duration = Duration::from_secs(10);
/// So many looks in vain before it is asked, at least, and after that some more before it is reported: who looks less often was busy, or stopped itself.
const LOOKS: u32 = 3;
/// Reports that nobody has taken yet.
const MOST_REPORTS: usize = 16;

/// What a silence makes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// To ask for a sign of life.
    Ask,
    /// To report a silence of so long.
    Tell(Duration),
}

/// How long nothing has come while somebody waited.
#[derive(Debug)]
pub(super) struct Silence {
    lasted: Duration,
    looked_at: Option<Instant>,
    is_asked: bool,
    ask_after: Duration,
    tell_after: Duration,
    tell_at: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        Self::with(ASK_AFTER, TELL_AFTER)
    }
}

impl Silence {
    /// With other limits.
    pub(super) fn with(ask_after: Duration, tell_after: Duration) -> Self {
        Silence {
            lasted: Duration::ZERO,
            looked_at: None,
            is_asked: false,
            ask_after,
            tell_after,
            tell_at: tell_after,
        }
    }

    /// Something has come.
    pub(super) fn ended(&mut self) {
        *self = Self::with(self.ask_after, self.tell_after);
    }

    /// Somebody has waited until now, and nothing has come.
    pub(super) fn goes_on(&mut self, now: Instant) {
        if let Some(before) = self.looked_at.replace(now) {
            self.lasted += now.saturating_duration_since(before).min(self.ask_after / LOOKS);
        }
    }

    /// What is to be done about it now; the same thing once.
    pub(super) fn due(&mut self) -> Option<Due> {
        if self.lasted >= self.tell_at {
            self.tell_at = self.lasted * 2;
            return Some(Due::Tell(self.lasted));
        }
        if self.lasted >= self.ask_after && !self.is_asked {
            self.is_asked = true;
            return Some(Due::Ask);
        }
        None
    }

    /// It could not be asked now.
    pub(super) fn not_asked(&mut self) {
        self.is_asked = false;
    }
}

// The standard library's, for they are the process'. A fork may copy the lock while it is held, so nobody waits for it.
static REPORTS: Mutex<Vec<(u32, Trouble)>> = Mutex::new(Vec::new());
static HAS_REPORTS: AtomicBool = AtomicBool::new(false);

/// Queues a report for whoever of this process waits next.
pub(super) fn report(trouble: Trouble) {
    if let Ok(mut reports) = REPORTS.try_lock()
        && reports.len() < MOST_REPORTS
    {
        reports.push((std::process::id(), trouble));
        HAS_REPORTS.store(true, Ordering::Release);
    }
}

/// Takes out what this process' clients have to report; costs a look at a flag where there is nothing. For the pulse of who waits.
#[must_use]
pub fn reports() -> Vec<Trouble> {
    if !HAS_REPORTS.load(Ordering::Acquire) {
        return Vec::new();
    }
    let Ok(mut reports) = REPORTS.try_lock() else {
        return Vec::new();
    };
    HAS_REPORTS.store(false, Ordering::Release);
    let ours = std::process::id();
    // Those of the parent of a forked process are the parent's to tell.
    let taken = std::mem::take(&mut *reports).into_iter();
    taken
        .filter_map(|(process, trouble)| (process == ours).then_some(trouble))
        .collect()
}

/// What there is to say of an agent that has been silent for so long.
pub(super) fn trouble(pid: u32, lasted: Duration) -> Trouble {
    let helps = if is_stopped(pid) {
        format!("it is stopped; `kill -CONT {pid}` lets it go on")
    } else {
        "it does not answer; its log is agent.log in the cache directory; if it is killed, a new one takes over"
            .to_owned()
    };
    let seconds = lasted.as_secs_f64();
    Trouble::new(
        "stalled",
        format!("waiting for the foreload agent, process {pid}, which has said nothing for {seconds:.0} s: {helps}"),
    )
}

/// Whether a signal or a debugger keeps it from running.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LOOK: Duration = Duration::from_millis(50);

    /// Looks for so long; what became due, and after how many seconds.
    fn looked(silence: &mut Silence, now: &mut Instant, seconds: u64) -> Vec<(u64, Due)> {
        let begun = *now;
        let mut due = Vec::new();
        while now.duration_since(begun) < Duration::from_secs(seconds) {
            *now += LOOK;
            silence.goes_on(*now);
            due.extend(silence.due().map(|due| (now.duration_since(begun).as_secs(), due)));
        }
        due
    }

    #[test]
    fn a_silence_is_asked_about_once_and_told_whenever_it_has_lasted_twice_as_long() {
        let (mut silence, mut now) = (Silence::default(), Instant::now());
        let due = looked(&mut silence, &mut now, 100);
        let tell = |seconds| Due::Tell(Duration::from_secs(seconds));
        assert_eq!(
            due,
            [
                (3, Due::Ask),
                (10, tell(10)),
                (20, tell(20)),
                (40, tell(40)),
                (80, tell(80))
            ]
        );
        silence.ended();
        assert_eq!(looked(&mut silence, &mut now, 5), [(3, Due::Ask)]);
    }

    #[test]
    fn time_in_which_nobody_looked_is_no_silence() {
        let (mut silence, mut now) = (Silence::default(), Instant::now());
        silence.goes_on(now);
        now += Duration::from_secs(3600);
        silence.goes_on(now);
        assert_eq!(silence.due(), None);
        assert_eq!(looked(&mut silence, &mut now, 1), []);
    }

    #[test]
    fn an_agent_that_could_not_be_asked_is_asked_again() {
        let (mut silence, mut now) = (Silence::default(), Instant::now());
        assert_eq!(looked(&mut silence, &mut now, 4), [(3, Due::Ask)]);
        silence.not_asked();
        assert_eq!(looked(&mut silence, &mut now, 1), [(0, Due::Ask)]);
    }

    #[test]
    fn a_stopped_process_is_said_to_be_stopped() {
        let mut agent = Command::new("sleep").arg("600").spawn().expect("started");
        let pid = agent.id();
        let said = |pid| trouble(pid, Duration::from_secs(10)).message;
        assert!(said(pid).contains("it does not answer"), "{}", said(pid));
        assert!(said(pid).contains(&format!("process {pid}, which has said nothing for 10 s")));
        let process = rustix::process::Pid::from_child(&agent);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("signalled");
        while !said(pid).contains(&format!("`kill -CONT {pid}`")) {
            std::thread::yield_now();
        }
        agent.kill().expect("killed");
        agent.wait().expect("ended");
    }
}
