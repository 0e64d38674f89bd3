//! The agent's processors: those of all its clients.
//!
//! Launchers bind each rank to processors of its own (`srun --cpu-bind`), and the agent is started by whichever rank comes first. It would inherit that one's
//! and serve the whole node with them. So each client that connects widens the agent's processors by its own. Who binds a whole run to some processors
//! (`taskset`) keeps the agent there: it never takes one that no client may use.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Adds a client's processors to those of all our threads; of a client that is gone already there is nothing to add.
pub fn join(client: Pid) {
    let (Ok(theirs), Ok(ours)) = (sched_getaffinity(Some(client)), sched_getaffinity(None)) else {
        return;
    };
    let Some(both) = union(&ours, &theirs) else { return };
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    for thread in numbers.filter_map(Pid::from_raw) {
        // One that has ended meanwhile needs none; where a cpuset forbids it, things stay as they are.
        let _ = sched_setaffinity(Some(thread), &both);
    }
}

/// The processors of either; `None`: `ours` are all of them.
fn union(ours: &CpuSet, theirs: &CpuSet) -> Option<CpuSet> {
    let mut both = *ours;
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| theirs.is_set(cpu))
        .for_each(|cpu| both.set(cpu));
    (both != *ours).then_some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        set
    }

    #[test]
    fn processors_are_added_and_never_taken_away() {
        assert_eq!(union(&set(&[0]), &set(&[0, 3])), Some(set(&[0, 3])));
        assert_eq!(union(&set(&[0]), &set(&[2])), Some(set(&[0, 2])));
        assert_eq!(union(&set(&[0, 1]), &set(&[1])), None);
        assert_eq!(union(&set(&[0, 1]), &set(&[])), None);
    }
}
