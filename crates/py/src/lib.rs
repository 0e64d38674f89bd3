//! Python conversions over the engine's client; decides nothing.
