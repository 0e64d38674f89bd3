//! Carries a plan out: slots, tiers, agent, client, metrics.
