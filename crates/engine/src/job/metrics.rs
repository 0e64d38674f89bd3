//! The metrics log of a job: one line of JSON per second in which it is read, one when it pauses, and one at the end.

use super::Job;
use crate::calls::Stats;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(1);

impl Job {
    /// Writes the log, if there is to be one.
    pub(super) fn log_metrics(self: &Rc<Self>) {
        let Some(log) = MetricsLog::open(self.attach.metrics_log.as_deref()) else {
            return;
        };
        tokio::task::spawn_local(Rc::clone(self).keep_log(log));
    }

    async fn keep_log(self: Rc<Self>, mut log: MetricsLog) {
        loop {
            let asked = self.asked.get();
            // Over before that, it has its last line at once.
            let _ = tokio::time::timeout(EVERY, self.ended.notified()).await;
            log.write(self.id, &self.stats());
            if self.is_closed() {
                return;
            }
            if self.asked.get() == asked && !self.waits() {
                self.active.notified().await;
            }
        }
    }
}

struct MetricsLog(std::fs::File);

impl MetricsLog {
    fn open(path: Option<&Path>) -> Option<Self> {
        let path = path?;
        match std::fs::OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Some(MetricsLog(file)),
            Err(error) => {
                eprintln!("foreload-agent: no metrics log at {}: {error}", path.display());
                None
            }
        }
    }

    fn write(&mut self, job: u32, stats: &Stats) {
        let unix_s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |t| t.as_secs_f64());
        let line = serde_json::json!({ "unix_s": unix_s, "job": job, "stats": stats });
        // A full disk costs a line of the log, never training.
        let _ = std::io::Write::write_all(&mut self.0, format!("{line}\n").as_bytes());
    }
}
