//! Sizes as people write them: `110000`, `110KB`, `8MiB`, `1GB`.

/// Reads a size in bytes; decimal (`KB`, `MB`, `GB`, `TB`) and binary (`KiB`, ...) units.
///
/// # Errors
///
/// A sentence naming the text that is not a size.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(format!("{text:?} is not a size: use for example 110000, 110KB, 8MiB")),
    };
    let value: f64 = number.parse().map_err(|_| format!("{text:?} is not a size"))?;
    Ok((value * factor as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn units_are_decimal_unless_they_say_binary() {
        assert_eq!(super::bytes("110000"), Ok(110_000));
        assert_eq!(super::bytes("1.5MB"), Ok(1_500_000));
        assert_eq!(super::bytes("8MiB"), Ok(8 << 20));
        assert!(super::bytes("8 parsecs").is_err());
        assert!(super::bytes("").is_err());
    }
}
