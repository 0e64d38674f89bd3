//! Settings from three places brought together: fields of [`SourceOptions`], `storage_options`, the environment.
//!
//! A field wins over a storage option, a storage option over the environment. Storage options go by the names that
//! fsspec, obstore and the clouds' tools use; a name nobody knows is an error that names the nearest known one, because
//! a misspelt option that is silently ignored costs an afternoon.

use super::address::{Address, Place};
use super::options::{Credentials, SourceOptions};
use crate::{Error, Result, env};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Which service a URL belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cloud {
    S3,
    Gs,
    Azure,
    Http,
}

impl Cloud {
    fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "aws_",
            Self::Gs => "google_",
            Self::Azure => "azure_",
            Self::Http => "",
        }
    }
}

/// One name for what several tools call differently. Names are without the cloud's prefix.
const ALIASES: &[(&str, &[&str])] = &[
    (
        "endpoint",
        &[
            "endpoint_url",
            "endpoint_url_s3",
            "base_url",
            "storage_endpoint",
            "account_url",
        ],
    ),
    ("region", &["default_region", "region_name"]),
    ("access_key_id", &["key", "storage_account_name_key"]),
    ("secret_access_key", &["secret"]),
    ("session_token", &["token", "security_token"]),
    ("profile", &["profile_name"]),
    ("anonymous", &["anon", "skip_signature", "no_sign_request"]),
    (
        "virtual_host",
        &["virtual_hosted_style_request", "virtual_hosted_style"],
    ),
    ("request_payer", &["requester_pays"]),
    ("allow_http", &[]),
    ("proxy", &["proxy_url"]),
    ("ca_file", &["ca_bundle", "verify"]),
    ("connect_timeout", &[]),
    ("read_timeout", &["timeout"]),
    ("bearer_token", &["storage_token"]),
    ("account_name", &["storage_account_name", "account"]),
    (
        "account_key",
        &["storage_account_key", "storage_access_key", "access_key", "master_key"],
    ),
    ("sas_token", &["storage_sas_token", "storage_sas_key", "sas_key"]),
    ("use_emulator", &["storage_use_emulator"]),
];

/// Names that object_store's credential chains take; they are passed on.
const CHAIN: &[(Cloud, &[&str])] = &[
    (
        Cloud::S3,
        &[
            "container_credentials_relative_uri",
            "container_credentials_full_uri",
            "container_authorization_token_file",
            "web_identity_token_file",
            "role_arn",
            "role_session_name",
            "endpoint_url_sts",
            "imdsv1_fallback",
            "metadata_endpoint",
        ],
    ),
    (
        Cloud::Gs,
        &[
            "service_account",
            "service_account_path",
            "service_account_key",
            "application_credentials",
        ],
    ),
    (
        Cloud::Azure,
        &[
            "client_id",
            "client_secret",
            "tenant_id",
            "authority_id",
            "authority_host",
            "msi_endpoint",
            "identity_endpoint",
            "object_id",
            "msi_resource_id",
            "federated_token_file",
            "use_azure_cli",
            "credential_type",
        ],
    ),
];

/// What a source was told, in one place.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub cloud: Cloud,
    /// The caller's options with storage options and environment filled in.
    pub options: SourceOptions,
    /// Whether the credentials were asked for by the caller rather than found in the environment.
    pub explicit_credentials: bool,
    pub account: Option<String>,
    pub emulator: bool,
    /// For object_store's credential chain.
    pub chain: BTreeMap<String, String>,
}

impl Settings {
    pub fn resolve(cloud: Cloud, options: &SourceOptions) -> Result<Self> {
        let given = canonical(cloud, &options.storage_options)?;
        let explicit = Credentials::from_names(&given);
        let explicit_credentials = options.credentials.is_some() || explicit.is_some() || options.profile.is_some();
        let mut named = environment(cloud, &env::all());
        let from_environment = Credentials::from_names(&named);
        named.extend(given);
        let mut options = options.clone();
        if options.profile.is_none() && options.credentials.is_none() {
            options.credentials = explicit.or(from_environment);
        }
        fill(&mut options, &named)?;
        let chain_names = CHAIN.iter().filter(|(c, _)| *c == cloud).flat_map(|(_, names)| *names);
        let chain = chain_names
            .filter_map(|n| Some(((*n).to_owned(), named.get(*n)?.clone())))
            .collect();
        let emulator = named
            .get("use_emulator")
            .is_some_and(|v| truth("use_emulator", v).unwrap_or(false));
        Ok(Self {
            cloud,
            options,
            explicit_credentials,
            account: named.get("account_name").cloned(),
            emulator,
            chain,
        })
    }
}

/// Fields that are not set take the named value.
fn fill(options: &mut SourceOptions, named: &BTreeMap<String, String>) -> Result<()> {
    let text = |name: &str| named.get(name).cloned();
    options.endpoint = options.endpoint.take().or_else(|| text("endpoint"));
    options.region = options.region.take().or_else(|| text("region"));
    options.profile = options.profile.take().or_else(|| text("profile"));
    options.proxy = options.proxy.take().or_else(|| text("proxy"));
    options.ca_file = options.ca_file.take().or_else(|| text("ca_file").map(PathBuf::from));
    for (name, field) in [
        ("virtual_host", &mut options.virtual_host),
        ("allow_http", &mut options.allow_http),
    ] {
        if let (None, Some(value)) = (&field, named.get(name)) {
            *field = Some(truth(name, value)?);
        }
    }
    if let Some(value) = named.get("request_payer") {
        options.request_payer |= value == "requester" || truth("request_payer", value)?;
    }
    let defaults = SourceOptions::default();
    if let Some(value) = named
        .get("connect_timeout")
        .filter(|_| options.connect_timeout == defaults.connect_timeout)
    {
        options.connect_timeout = duration("connect_timeout", value)?;
    }
    if let Some(value) = named
        .get("read_timeout")
        .filter(|_| options.read_timeout == defaults.read_timeout)
    {
        options.read_timeout = duration("read_timeout", value)?;
    }
    Ok(())
}

impl Credentials {
    fn from_names(named: &BTreeMap<String, String>) -> Option<Self> {
        let text = |name: &str| named.get(name).cloned();
        if named
            .get("anonymous")
            .is_some_and(|v| truth("anonymous", v).unwrap_or(false))
        {
            return Some(Self::Anonymous);
        }
        if let (Some(id), Some(secret)) = (text("access_key_id"), text("secret_access_key")) {
            return Some(Self::AccessKey {
                id,
                secret,
                token: text("session_token"),
            });
        }
        let token = text("bearer_token").map(Self::Bearer);
        token
            .or_else(|| text("account_key").map(Self::AccountKey))
            .or_else(|| text("sas_token").map(Self::Sas))
    }
}

/// Storage options under one name each.
fn canonical(cloud: Cloud, given: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let mut named = BTreeMap::new();
    for (name, value) in given {
        let lower = name.to_ascii_lowercase();
        let found = known(cloud, &lower).ok_or_else(|| {
            let remedy = nearest(cloud, &lower).map(|n| format!("did you mean {n:?}?"));
            Error::invalid(format!("unknown storage option {name:?}"))
                .with_remedy(remedy.unwrap_or_else(|| "see the list in the documentation of sources".to_owned()))
        })?;
        named.insert(found.to_owned(), value.clone());
    }
    Ok(named)
}

/// What an environment says; names of no concern are skipped there.
fn environment(cloud: Cloud, variables: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    let mut said: Vec<_> = variables.iter().filter(|(_, value)| !value.is_empty()).collect();
    if let Some((_, path)) = said.iter().find(|(name, _)| *name == "SSL_CERT_FILE") {
        named.insert("ca_file".to_owned(), (*path).clone());
    }
    let prefix = cloud.prefix().to_ascii_uppercase();
    said.retain(|(name, _)| !prefix.is_empty() && name.starts_with(&prefix));
    // The service-specific endpoint wins over the general one.
    said.sort_by_key(|(name, _)| name.ends_with("_S3"));
    for (name, value) in said {
        if let Some(name) = known(cloud, &name.to_ascii_lowercase()) {
            named.insert(name.to_owned(), value.clone());
        }
    }
    named
}

/// Options that say who asks. Those of one place go together: given any of them, an environment's are somebody else's.
const IDENTITY: &[&str] = &[
    "access_key_id",
    "secret_access_key",
    "session_token",
    "profile",
    "anonymous",
    "bearer_token",
    "account_key",
    "sas_token",
    "application_credentials",
    "service_account",
    "service_account_path",
    "service_account_key",
];

/// Storage options for a URL with what an environment adds, under one name each. For a process that has others open the URL: they may have been
/// started with other variables. Options for a directory, or for a URL that can't be read, stay as they are.
///
/// # Errors
/// `Invalid` for an option that nobody knows, and for half a pair of keys.
pub fn storage_options(
    url: &str,
    given: &BTreeMap<String, String>,
    variables: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let Ok(Place::Cloud(cloud)) = Address::parse(url).map(|address| address.place) else {
        return Ok(given.clone());
    };
    let named = canonical(cloud, given)?;
    if cloud == Cloud::S3 {
        check_pair(&named)?;
    }
    let mut found = environment(cloud, variables);
    if named.keys().any(|name| IDENTITY.contains(&name.as_str())) {
        found.retain(|name, _| !IDENTITY.contains(&name.as_str()));
    }
    if found.contains_key("access_key_id") {
        found.remove("profile");
    }
    found.extend(named);
    Ok(found)
}

/// Refuses half a pair of keys: with the other half of somebody else it would be ignored, or refused by the store as theirs.
fn check_pair(named: &BTreeMap<String, String>) -> Result<()> {
    let is_named = |name: &&&str| named.contains_key(**name);
    let parts = ["access_key_id", "secret_access_key", "session_token"];
    let given: Vec<&str> = parts.iter().filter(is_named).copied().collect();
    let missing: Vec<&str> = parts[..2].iter().filter(|name| !is_named(name)).copied().collect();
    if given.is_empty() || missing.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "storage_options: {} without {}; give both keys, or neither to have the environment's",
        given.join(", "),
        missing.join(" and ")
    )))
}

/// The one name of an option.
fn known(cloud: Cloud, name: &str) -> Option<&'static str> {
    let bare = name.strip_prefix(cloud.prefix()).unwrap_or(name);
    let alias = ALIASES
        .iter()
        .find(|(canonical, others)| *canonical == bare || others.contains(&bare));
    if let Some((canonical, _)) = alias {
        // Google's and Azure's "token" is an OAuth token.
        let is_token = bare == "token" && cloud != Cloud::S3;
        return Some(if is_token { "bearer_token" } else { canonical });
    }
    let chain = CHAIN.iter().filter(|(c, _)| *c == cloud).flat_map(|(_, names)| *names);
    chain.copied().find(|n| *n == bare)
}

fn nearest(cloud: Cloud, name: &str) -> Option<&'static str> {
    let bare = name.strip_prefix(cloud.prefix()).unwrap_or(name);
    let chain = CHAIN.iter().filter(|(c, _)| *c == cloud).flat_map(|(_, names)| *names);
    let all = ALIASES
        .iter()
        .flat_map(|(n, others)| std::iter::once(n).chain(*others))
        .chain(chain);
    let scored = all.map(|known| (distance(bare, known), *known)).min()?;
    (scored.0 <= 1 + bare.len() / 4).then_some(scored.1)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

fn truth(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(Error::invalid(format!(
            "option {name}: {value:?} is neither true nor false"
        ))),
    }
}

/// Seconds, with or without the unit.
fn duration(name: &str, value: &str) -> Result<Duration> {
    let (number, unit) = match value.find(|c: char| !c.is_ascii_digit() && c != '.') {
        Some(at) => (&value[..at], value[at..].trim()),
        None => (value, "s"),
    };
    let scale = match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => Some(1.0),
        "ms" => Some(1e-3),
        "m" | "min" => Some(60.0),
        _ => None,
    };
    let seconds = number
        .parse::<f64>()
        .ok()
        .zip(scale)
        .map(|(n, s)| n * s)
        .filter(|s| *s > 0.0 && *s < 1e9);
    let wrong =
        || Error::invalid(format!("option {name}: {value:?} is no time")).with_remedy("write seconds, such as 5");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(cloud: Cloud, pairs: &[(&str, &str)]) -> Result<Settings> {
        let storage_options = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Settings::resolve(
            cloud,
            &SourceOptions {
                storage_options,
                ..SourceOptions::default()
            },
        )
    }

    #[test]
    fn the_names_of_other_tools_are_understood() {
        let fsspec = resolve(
            Cloud::S3,
            &[
                ("key", "a"),
                ("secret", "b"),
                ("endpoint_url", "http://h"),
                ("timeout", "2.5"),
            ],
        );
        let options = fsspec.unwrap().options;
        assert_eq!(options.endpoint.as_deref(), Some("http://h"));
        assert_eq!(options.read_timeout, Duration::from_millis(2500));
        let id = Credentials::AccessKey {
            id: "a".into(),
            secret: "b".into(),
            token: None,
        };
        assert_eq!(options.credentials, Some(id));
        let obstore = resolve(Cloud::Gs, &[("google_skip_signature", "true")]).unwrap();
        assert_eq!(obstore.options.credentials, Some(Credentials::Anonymous));
        let azure = resolve(
            Cloud::Azure,
            &[("account_name", "x"), ("azure_storage_account_key", "k")],
        )
        .unwrap();
        assert_eq!(azure.account.as_deref(), Some("x"));
        assert_eq!(azure.options.credentials, Some(Credentials::AccountKey("k".into())));
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn an_environment_adds_what_was_not_given_and_nothing_of_who_asks() {
        let aws = map(&[
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_PROFILE", "other"),
            ("AWS_ENDPOINT_URL", "http://general"),
            ("AWS_ENDPOINT_URL_S3", "http://own"),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_EXECUTION_ENV", "no option"),
            ("GOOGLE_BEARER_TOKEN", "of another cloud"),
            ("HOME", "/root"),
        ]);
        let with = |given: &[(&str, &str)]| storage_options("s3a://b/p", &map(given), &aws);
        let keys = [("access_key_id", "id"), ("secret_access_key", "secret")];
        assert_eq!(
            with(&[]).expect("good"),
            map(&[&keys[..], &[("endpoint", "http://own")]].concat())
        );
        assert_eq!(
            with(&[("AWS_ENDPOINT_URL", "x")]).expect("good"),
            map(&[&keys[..], &[("endpoint", "x")]].concat())
        );
        assert_eq!(
            with(&[("anon", "true")]).expect("good"),
            map(&[("anonymous", "true"), ("endpoint", "http://own")])
        );
        assert_eq!(
            with(&[("key", "k"), ("secret", "s")]).expect("good"),
            map(&[
                ("access_key_id", "k"),
                ("secret_access_key", "s"),
                ("endpoint", "http://own")
            ])
        );
        let half = with(&[("AWS_ACCESS_KEY_ID", "k"), ("token", "t")]).expect_err("half a pair");
        assert!(
            half.to_string()
                .contains("access_key_id, session_token without secret_access_key"),
            "{half}"
        );
        // A URL that signs what it allows goes before the account's own key.
        let azure = map(&[("AZURE_STORAGE_ACCOUNT_KEY", "k"), ("AZURE_STORAGE_ACCOUNT_NAME", "a")]);
        assert_eq!(
            storage_options("az://c", &map(&[("sas_token", "s")]), &azure).expect("good"),
            map(&[("sas_token", "s"), ("account_name", "a")])
        );
        let odd = map(&[("key", "k")]);
        assert_eq!(storage_options("/a/directory", &odd, &aws).expect("good"), odd);
        assert_eq!(storage_options("what://b", &odd, &aws).expect("good"), odd);
    }

    #[test]
    fn a_misspelt_option_is_an_error_with_the_right_name() {
        let error = resolve(Cloud::S3, &[("endpont_url", "x")]).unwrap_err();
        assert!(error.to_string().contains("did you mean \"endpoint_url\"?"), "{error}");
        assert!(resolve(Cloud::S3, &[("allow_http", "maybe")]).is_err());
        assert!(resolve(Cloud::S3, &[("connect_timeout", "-1")]).is_err());
    }
}
