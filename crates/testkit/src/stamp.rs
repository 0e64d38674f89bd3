//! Points in time as S3 writes them: `20240229T120000Z` in signatures, ISO 8601 in listings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970, zero for anything before.
#[must_use]
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// The instant in the form of `x-amz-date`; its first eight letters are the date of the scope.
#[must_use]
pub fn amz(time: SystemTime) -> String {
    let (y, mo, d, h, mi, s) = civil(seconds(time));
    format!("{y:04}{mo:02}{d:02}T{h:02}{mi:02}{s:02}Z")
}

/// The instant in the form of `LastModified` in listings.
#[must_use]
pub fn iso8601(time: SystemTime) -> String {
    let (y, mo, d, h, mi, s) = civil(seconds(time));
    format!("{y:04}-{mo:02}-{d:02}T{h:02}:{mi:02}:{s:02}.000Z")
}

/// Reads `x-amz-date`; `None` when it is not one.
#[must_use]
pub fn parse_amz(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || !text.is_ascii() || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(9..11)?, number(11..13)?, number(13..15)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    let total = days * 86_400 + hour.min(23) * 3600 + minute.min(59) * 60 + second.min(60);
    Some(UNIX_EPOCH + Duration::from_secs(total))
}

/// Howard Hinnant's `days_from_civil`, for years from 1970 on.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year % 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`], with the time of day.
fn civil(seconds: u64) -> (u64, u64, u64, u64, u64, u64) {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let rest = seconds % 86_400;
    (year, month, day, rest / 3600, rest % 3600 / 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_survive_a_round_trip() {
        for seconds in [0, 951_782_400, 1_709_208_000, 1_709_294_399, 4_102_444_800] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(parse_amz(&amz(time)), Some(time));
        }
        let leap = UNIX_EPOCH + Duration::from_secs(1_709_208_000);
        assert_eq!(amz(leap), "20240229T120000Z");
        assert_eq!(iso8601(leap), "2024-02-29T12:00:00.000Z");
    }

    #[test]
    fn what_is_not_a_stamp_is_refused() {
        for text in ["", "20240229", "20241329T120000Z", "2024-02-29T12:00:00Z"] {
            assert_eq!(parse_amz(text), None, "{text}");
        }
    }
}
