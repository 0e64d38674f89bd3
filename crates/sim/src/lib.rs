//! Carries a plan out on modelled hardware under a virtual clock.
