//! AWS profiles: `~/.aws/config` and `~/.aws/credentials`.
//!
//! Keys, region and endpoint are read from them, and `credential_process` is run when credentials are needed. Profiles
//! that sign in (SSO) or assume roles need AWS's own machinery: the caller passes a boto3 session as credential provider,
//! and the error says so.

use crate::source::sign::AccessKey;
use crate::{Error, ErrorKind, Result, env};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// What a profile says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub name: String,
    values: BTreeMap<String, String>,
}

/// Temporary credentials and their end.
#[derive(Debug, Clone)]
pub(crate) struct Issued {
    pub key: AccessKey,
    pub expires: Option<SystemTime>,
}

impl Profile {
    /// Reads the profile called `name`, or the one the environment names, or `default`.
    ///
    /// `Ok(None)` when no profile was asked for and there is no default one.
    pub fn load(name: Option<&str>) -> Result<Option<Self>> {
        let asked = name
            .map(str::to_owned)
            .or_else(|| env::first(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]));
        let place = |variable: &str, file: &str| {
            env::get(variable)
                .map(PathBuf::from)
                .or_else(|| env::home().map(|home| home.join(".aws").join(file)))
        };
        let read = |path: Option<PathBuf>| path.and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
        let config = read(place("AWS_CONFIG_FILE", "config"));
        let credentials = read(place("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
        let profile = Self::parse(asked.as_deref().unwrap_or("default"), &config, &credentials);
        match (profile, asked) {
            (None, Some(name)) => Err(Error::invalid(format!("there is no AWS profile {name:?}"))
                .with_remedy("check ~/.aws/config, AWS_PROFILE and the option `profile`")),
            (profile, _) => Ok(profile),
        }
    }

    /// The profile in the text of the two files; the credentials file wins.
    fn parse(name: &str, config: &str, credentials: &str) -> Option<Self> {
        let mut values = BTreeMap::new();
        let mut found = false;
        // The config file calls its sections "profile x", except the default one, which it may call either.
        let section = format!("profile {name}");
        let plain = if name == "default" { name } else { "" };
        for (text, wanted) in [(config, plain), (config, section.as_str()), (credentials, name)] {
            let mut inside = false;
            for line in text.lines() {
                let is_nested = line.starts_with([' ', '\t']);
                let line = line.trim();
                if let Some(header) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
                    let header = header.split_whitespace().collect::<Vec<_>>().join(" ");
                    inside = header == wanted;
                    found |= inside;
                } else if let (true, false, Some((key, value))) = (inside, is_nested, line.split_once('='))
                    && !line.starts_with(['#', ';'])
                {
                    values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
                }
            }
        }
        found.then(|| Self {
            name: name.to_owned(),
            values,
        })
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Keys written in the files.
    pub fn access_key(&self) -> Option<AccessKey> {
        let token = self.get("aws_session_token").map(str::to_owned);
        let (id, secret) = (self.get("aws_access_key_id")?, self.get("aws_secret_access_key")?);
        Some(AccessKey {
            id: id.to_owned(),
            secret: secret.to_owned(),
            token,
        })
    }

    /// Why this profile cannot give credentials by itself, when it needs AWS's machinery.
    pub fn unsupported(&self) -> Option<Error> {
        let way = if self.get("sso_session").or(self.get("sso_start_url")).is_some() {
            "signs in through SSO"
        } else if self.get("role_arn").is_some() {
            "assumes a role"
        } else {
            return None;
        };
        Some(
            Error::new(ErrorKind::Denied, format!("the AWS profile {:?} {way}", self.name)).with_remedy(
                "pass credential_provider=boto3.Session(profile_name=...), or name a credential_process in the profile",
            ),
        )
    }

    /// Runs the profile's `credential_process`.
    pub async fn run_process(command: &str) -> Result<Issued> {
        let denied = |how: String| Error::new(ErrorKind::Denied, format!("credential_process {how}"));
        let mut process = tokio::process::Command::new("/bin/sh");
        process
            .args(["-c", command])
            .kill_on_drop(true)
            .stdin(std::process::Stdio::null());
        let output = tokio::time::timeout(Duration::from_secs(60), process.output()).await;
        let output = output.map_err(|_| denied("did not end within 60 s".into()))?;
        let output = output.map_err(|e| denied(format!("cannot be started: {e}")))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr)
                .chars()
                .take(300)
                .collect::<String>();
            return Err(denied(format!("failed ({}): {}", output.status, why.trim())));
        }
        Self::parse_issued(&output.stdout)
            .ok_or_else(|| denied("printed something else than version 1 credentials".into()))
    }

    fn parse_issued(text: &[u8]) -> Option<Issued> {
        let json: serde_json::Value = serde_json::from_slice(text).ok()?;
        let field = |name: &str| json.get(name).and_then(|v| v.as_str()).map(str::to_owned);
        (json.get("Version")?.as_u64()? == 1).then_some(())?;
        let key = AccessKey {
            id: field("AccessKeyId")?,
            secret: field("SecretAccessKey")?,
            token: field("SessionToken"),
        };
        Some(Issued {
            key,
            expires: field("Expiration").and_then(|t| parse_time(&t)),
        })
    }
}

/// A moment as RFC 3339 writes it, in UTC or with an offset.
pub(crate) fn parse_time(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(|p| p.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let sign_at = time.rfind(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(sign_at);
    let mut parts = clock.splitn(3, ':').map(|p| p.parse::<f64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0.0));
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, rest) => {
            let (hours, minutes) = rest.split_once(':').unwrap_or((rest, "0"));
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from civil (Howard Hinnant).
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year - era * 400;
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let seconds = (days * 86_400 - offset * 60) as f64 + hour * 3600.0 + minute * 60.0 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile work]\nregion=us-west-2\ns3 =\n  region = nested\n\
        [profile sso]\nsso_session = x\n[profile tool]\ncredential_process = echo hi\n";
    const CREDENTIALS: &str = "# keys\n[work]\naws_access_key_id = A\naws_secret_access_key = S=\n";

    #[test]
    fn a_profile_joins_both_files() {
        let work = Profile::parse("work", CONFIG, CREDENTIALS).unwrap();
        assert_eq!(work.get("region"), Some("us-west-2"));
        let key = work.access_key().unwrap();
        assert_eq!((key.id.as_str(), key.secret.as_str()), ("A", "S="));
        assert_eq!(
            Profile::parse("default", CONFIG, CREDENTIALS).unwrap().get("region"),
            Some("eu-west-1")
        );
        assert!(Profile::parse("none", CONFIG, CREDENTIALS).is_none());
        assert_eq!(
            Profile::parse("sso", CONFIG, "").unwrap().unsupported().unwrap().kind(),
            ErrorKind::Denied
        );
        assert_eq!(
            Profile::parse("tool", CONFIG, "").unwrap().get("credential_process"),
            Some("echo hi")
        );
    }

    #[test]
    fn times_are_read() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(parse_time("2013-05-24T00:00:00Z"), Some(at(1_369_353_600)));
        assert_eq!(parse_time("2013-05-24T02:00:00+02:00"), Some(at(1_369_353_600)));
        assert_eq!(parse_time("2000-02-29T00:00:00.000Z"), Some(at(951_782_400)));
        assert_eq!(parse_time("soon"), None);
    }

    #[tokio::test]
    async fn a_credential_process_is_run() {
        let printed =
            r#"echo '{"Version":1,"AccessKeyId":"A","SecretAccessKey":"B","Expiration":"2013-05-24T00:00:00Z"}'"#;
        let issued = Profile::run_process(printed).await.unwrap();
        assert_eq!(issued.key.id, "A");
        assert!(issued.expires.is_some());
        assert!(
            Profile::run_process("echo no >&2; false")
                .await
                .unwrap_err()
                .to_string()
                .contains("no")
        );
        assert!(Profile::run_process("echo '{}'").await.is_err());
    }

    proptest! {
        #[test]
        fn proptest_no_text_breaks_the_parsers(text in "\\PC{0,80}", file in "[\\[\\]a-z =#\n]{0,80}") {
            let _ = (parse_time(&text), Profile::parse("a", &file, &text), Profile::parse_issued(text.as_bytes()));
        }
    }
}
