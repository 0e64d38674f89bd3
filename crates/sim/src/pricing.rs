//! Prices for simulated and real runs, as one JSON request: what the Python package and the command line call.
//!
//! The arithmetic is [`crate::cost`]; here price sheets are read and requests dispatched.

use crate::cost::breakeven::{BreakEven, CopyPlan, Feed, compare};
use crate::cost::{Bill, PriceSheet, Usage, deli};
use crate::{Error, scenario::keys::nearest};
use serde::{Deserialize, Serialize};

/// A sheet that ships, by name, or the TOML text of the user's own.
///
/// # Errors
/// When the name is unknown or the text is not a price sheet.
pub fn sheet(prices: &str) -> Result<PriceSheet, Error> {
    let text = match PriceSheet::SHIPPED.iter().find(|(name, _)| *name == prices) {
        Some((_, text)) => text,
        None if prices.contains(['=', '\n']) => prices,
        None => {
            let names = PriceSheet::SHIPPED.iter().map(|(name, _)| *name);
            return Err(Error::UnknownSheet {
                name: prices.to_owned(),
                nearest: nearest(prices, names).map(str::to_owned),
            });
        }
    };
    let sheet: PriceSheet = toml::from_str(text).map_err(|e| Error::Sheet(e.to_string()))?;
    checked(sheet)
}

/// Dollars for one of anything, at most: beyond, a bill could be more than a number holds.
const MOST_DOLLARS: f64 = 1e9;

fn checked(sheet: PriceSheet) -> Result<PriceSheet, Error> {
    for (key, dollars) in [
        ("requests.class_a_per_10k", sheet.requests.class_a_per_10k),
        ("requests.class_b_per_10k", sheet.requests.class_b_per_10k),
        ("storage_gb_month", sheet.storage_gb_month),
        ("egress_gb", sheet.egress_gb),
        ("cross_zone_gb", sheet.cross_zone_gb),
        ("instance_hour", sheet.instance_hour),
        ("disk_gb_month", sheet.disk_gb_month),
    ] {
        if !(0.0..=MOST_DOLLARS).contains(&dollars) {
            return Err(Error::Sheet(format!(
                "{key}: {dollars} is no price; write dollars from 0 to {MOST_DOLLARS:e}"
            )));
        }
    }
    match sheet.page_size {
        0 => Err(Error::Sheet(
            "page_size: a listing's page has at least 1 object".to_owned(),
        )),
        _ => Ok(sheet),
    }
}

fn finite(bills: &[Bill]) -> Result<(), Error> {
    match bills.iter().all(|bill| bill.total().is_finite()) {
        true => Ok(()),
        false => Err(Error::Request(
            "it comes to more dollars than a number holds".to_owned(),
        )),
    }
}

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// A sheet's text, to be edited.
    Sheet { name: String },
    /// The bill for a run.
    Price { prices: String, usage: Usage },
    /// Reading from the bucket against copying to every node's disk.
    BreakEven {
        prices: String,
        epochs: u64,
        bucket: Feed,
        copy: CopyPlan,
    },
    /// Equations (1)-(5) of paper 000; without rates, those of its Table II.
    Deli {
        rates: Option<deli::Rates>,
        training: deli::Training,
        loading: deli::Loading,
    },
}

/// What is answered.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Sheet {
        text: &'static str,
    },
    Price {
        sheet: PriceSheet,
        bill: Bill,
        total: f64,
    },
    BreakEven {
        sheet: PriceSheet,
        #[serde(flatten)]
        result: BreakEven,
    },
    Deli {
        #[serde(flatten)]
        cost: deli::Cost,
        total: f64,
    },
}

/// Answers one request: `{"price": {"prices": "gcs", "usage": {..}}}`, `{"break_even": {..}}`, `{"deli": {..}}` or `{"sheet": {"name": "s3"}}`.
///
/// # Errors
/// When the request or its price sheet is not valid.
pub fn cost_json(request: &str) -> Result<String, Error> {
    let request: Request = serde_json::from_str(request).map_err(|e| Error::Request(e.to_string()))?;
    let answer = match request {
        Request::Sheet { name } => {
            sheet(&name)?;
            let shipped = PriceSheet::SHIPPED.iter().find(|(n, _)| *n == name);
            Answer::Sheet {
                text: shipped.map_or("", |(_, text)| text),
            }
        }
        Request::Price { prices, usage } => {
            let sheet = sheet(&prices)?;
            let bill = sheet.price(&usage);
            finite(&[bill])?;
            Answer::Price {
                sheet,
                bill,
                total: bill.total(),
            }
        }
        Request::BreakEven {
            prices,
            epochs,
            bucket,
            copy,
        } => {
            let sheet = sheet(&prices)?;
            let result = compare(&sheet, &bucket, &copy.feed(sheet.page_size), epochs);
            finite(&[result.bucket, result.copy])?;
            Answer::BreakEven { sheet, result }
        }
        Request::Deli {
            rates,
            training,
            loading,
        } => {
            let cost = deli::cost(&rates.unwrap_or(deli::Rates::TABLE_II), &training, loading);
            Answer::Deli {
                cost,
                total: cost.total(),
            }
        }
    };
    Ok(serde_json::to_string(&answer).expect("an answer is plain numbers and strings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_sheet_is_valid_dated_and_to_be_verified() {
        for (name, _) in PriceSheet::SHIPPED {
            let sheet = sheet(name).expect("a valid sheet");
            assert_eq!((sheet.name.as_str(), sheet.dated.len()), (name, 10));
            assert!(sheet.source.contains("verify"), "{}", sheet.source);
        }
    }

    #[test]
    fn an_edited_sheet_is_taken_as_text_and_its_misspellings_are_refused() {
        let text = PriceSheet::SHIPPED[0].1.replace("egress_gb = 0.12", "egress_gb = 0.5");
        assert_eq!(sheet(&text).expect("valid").egress_gb, 0.5);
        assert!(sheet(&text.replace("egress_gb", "egres_gb")).is_err());
        for price in ["-1", "nan", "inf", "1e300"] {
            let message = sheet(&text.replace("egress_gb = 0.5", &format!("egress_gb = {price}")));
            let message = message.expect_err("no price").to_string();
            assert!(message.contains("egress_gb: "), "{message}");
        }
        assert!(sheet(&text.replace("page_size = 1000", "page_size = 0")).is_err());
        assert!(sheet("gcp").expect_err("unknown").to_string().contains("gcs"));
    }

    #[test]
    fn a_request_is_answered_with_the_bill_and_the_sheet() {
        let answer =
            cost_json(r#"{"price": {"prices": "s3", "usage": {"nodes": 2, "hours": 1, "class_b_requests": 10000}}}"#);
        let value: serde_json::Value = serde_json::from_str(&answer.expect("valid")).expect("JSON");
        assert!((value["bill"]["requests"].as_f64().expect("dollars") - 0.004).abs() < 1e-12);
        assert!(
            (value["total"].as_f64().expect("dollars") - 2.016).abs() < 1e-9,
            "{value}"
        );
        assert!(cost_json(r#"{"price": {"prices": "s3", "usage": {"node": 2}}}"#).is_err());
    }

    #[test]
    fn the_paper_s_equations_are_reachable() {
        let answer = cost_json(
            r#"{"deli": {"training": {"nodes": 3, "samples": 42000, "epochs": 2, "system_gb": 16, "dataset_gb": 0.24, "run_hours": 0.068},
                "loading": {"bucket": {"cached": 2048, "fetch": 1024, "listing": "per-fetch", "super_sample": 1}}}}"#,
        );
        let value: serde_json::Value = serde_json::from_str(&answer.expect("valid")).expect("JSON");
        assert!(
            (value["storage"].as_f64().expect("dollars") - 1.9276).abs() < 1e-3,
            "{value}"
        );
    }
}
