//! Which of the policies in `plan` are simulated, by their names.

use crate::Error;
pub use foreload_plan::policy::Policy;

/// Paper 000's policy as it is named here: its numbers are the scenario's (`[deli]`), so these stand for any.
pub const DELI: Policy = Policy::Deli {
    fetch: 1,
    threshold: 0,
    cache: 1,
};

/// All that are simulated, in the order of the papers. No paper ran `lru`.
pub const POLICIES: [Policy; 12] = [
    Policy::Perfect,
    Policy::Naive,
    Policy::Staging,
    Policy::DeepioOrdered,
    Policy::DeepioOptimistic,
    Policy::ParallelStaging,
    Policy::LbannDynamic,
    Policy::LbannPreload,
    Policy::LocalityAware,
    Policy::Frequency,
    DELI,
    Policy::Foreload,
];

/// The simulated policy of that name.
///
/// # Errors
/// When there is none; the message names the closest.
pub fn from_name(name: &str) -> Result<Policy, Error> {
    let mut known = POLICIES.into_iter();
    known
        .find(|p| p.name() == name)
        .ok_or_else(|| Error::UnknownPolicy { name: name.to_owned() })
}

/// Whether the lower bound of a scenario holds for it: it reads everything, in order. (`perfect` reads nothing.)
#[must_use]
pub fn obeys_bound(policy: Policy) -> bool {
    policy.reads_whole_dataset() && policy.keeps_order()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways_and_misspellings_get_a_suggestion() {
        for policy in POLICIES {
            assert_eq!(from_name(policy.name()).expect("known"), policy);
        }
        let message = from_name("frequencies").expect_err("unknown").to_string();
        assert!(
            message.starts_with(r#"policy: "frequencies" is not one of perfect, naive, "#)
                && message.ends_with(r#"did you mean "frequency"?"#),
            "{message}"
        );
    }
}
