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
                crate::log::say!("no metrics log at {}: {error}", path.display());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::{LONG, run, until};

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.lines().filter(|_| text.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn a_log_is_continued_and_one_that_cannot_be_written_costs_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("log");
        for job in [3, 4] {
            MetricsLog::open(Some(&path))
                .expect("opened")
                .write(job, &Stats::default());
        }
        let jobs: Vec<_> = lines(&path).iter().map(|line| line["job"].as_u64()).collect();
        assert_eq!(jobs, [Some(3), Some(4)]);
        assert!(lines(&path)[0]["unix_s"].as_f64().is_some_and(|at| at > 1.7e9));
        assert_eq!(lines(&path)[0]["stats"]["samples"], 0);
        assert!(MetricsLog::open(None).is_none());
        assert!(MetricsLog::open(Some(&directory.path().join("none/log"))).is_none());
    }

    #[test]
    fn a_job_that_ends_has_its_last_line_at_once() {
        run(LONG, |node| async move {
            let path = node.directory.path().join("log");
            let mut attach = node.attachment(node.dataset("a", &[100; 8]));
            attach.metrics_log = Some(path.clone());
            let (job, _) = node.attach(&node.client(), attach).await.expect("attached");
            job.count(|stats| stats.samples = 7);
            job.close();
            until(|| lines(&path).last().is_some_and(|line| line["stats"]["samples"] == 7)).await;
            until(|| Rc::strong_count(&job) <= 2).await;
            let said = lines(&path).len();
            job.close();
            tokio::task::yield_now().await;
            assert_eq!(lines(&path).len(), said);
        });
    }
}
