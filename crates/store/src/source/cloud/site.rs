//! Where a bucket lives: endpoint, region and proxies become an origin and a path.

use crate::source::address::Address;
use crate::source::http::{Origin, Proxy, ProxyRules};
use crate::source::profile::Profile;
use crate::source::settings::{Cloud, Settings};
use crate::{Error, Result, env};

/// Where the bucket is: the store may correct the region.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub origin: Origin,
    /// Encoded path before the key, without a trailing slash.
    pub path: String,
    pub region: String,
}

fn parse(text: &str) -> Result<url::Url> {
    let wrong =
        |_| Error::invalid(format!("{text:?} is no URL")).with_remedy("write the endpoint as https://host[:port]");
    url::Url::parse(text).map_err(wrong)
}

pub(crate) fn site_of(address: &Address, settings: &Settings, profile: Option<&Profile>) -> Result<Site> {
    let (cloud, name, options) = (settings.cloud, address.name.as_str(), &settings.options);
    let from_profile = |key: &str| profile.and_then(|p| p.get(key)).map(str::to_owned);
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| from_profile("endpoint_url").filter(|_| cloud == Cloud::S3));
    let region = options
        .region
        .clone()
        .or_else(|| from_profile("region"))
        .unwrap_or_else(|| "us-east-1".to_owned());
    let full = match (cloud, endpoint) {
        (Cloud::Http, _) => {
            return Ok(Site {
                origin: Origin::of(&parse(&address.scheme_and_name())?)?,
                path: String::new(),
                region,
            });
        }
        (Cloud::S3, None) => return amazon_site(name, &region, options.virtual_host),
        (Cloud::S3, Some(endpoint)) if options.virtual_host == Some(true) => {
            let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
            if parse(&format!("{scheme}://{host}")).is_ok_and(|url| !matches!(url.host(), Some(url::Host::Domain(_)))) {
                let error = format!("virtual_host: {endpoint:?} is an address, and no bucket has a name below one");
                return Err(Error::invalid(error).with_remedy("leave virtual_host out"));
            }
            if host.starts_with(&format!("{name}.")) {
                endpoint.clone()
            } else {
                format!("{scheme}://{name}.{host}")
            }
        }
        (Cloud::Gs, None) => format!("https://storage.googleapis.com/{name}"),
        (Cloud::Azure, endpoint) => {
            let account = settings.account.as_deref().unwrap_or("devstoreaccount1");
            if settings.account.is_none() && !settings.emulator {
                return Err(Error::invalid("the Azure account is not named")
                    .with_remedy("set the storage option account_name or AZURE_STORAGE_ACCOUNT_NAME"));
            }
            match endpoint {
                Some(endpoint) => format!("{}/{name}", endpoint.trim_end_matches('/')),
                None if settings.emulator => format!("http://127.0.0.1:10000/{account}/{name}"),
                None => format!("https://{account}.blob.core.windows.net/{name}"),
            }
        }
        (_, Some(endpoint)) => format!("{}/{name}", endpoint.trim_end_matches('/')),
    };
    let url = parse(&full)?;
    Ok(Site {
        origin: Origin::of(&url)?,
        path: url.path().trim_end_matches('/').to_owned(),
        region,
    })
}

/// Where Amazon keeps a bucket. Names with dots do not fit its certificates as host names.
pub(crate) fn amazon_site(name: &str, region: &str, virtual_host: Option<bool>) -> Result<Site> {
    let domain = if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    };
    let text = if virtual_host.unwrap_or(!name.contains('.')) {
        format!("https://{name}.s3.{region}.{domain}/")
    } else {
        format!("https://s3.{region}.{domain}/{name}")
    };
    let wrong = |_| Error::invalid(format!("bucket {name:?} in region {region:?} gives no valid address"));
    let url = url::Url::parse(&text).map_err(wrong)?;
    Ok(Site {
        origin: Origin::of(&url)?,
        path: url.path().trim_end_matches('/').to_owned(),
        region: region.to_owned(),
    })
}

pub(crate) fn is_loopback(origin: &Origin) -> bool {
    let host = origin.host();
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(crate) fn proxies(option: Option<&str>) -> Result<ProxyRules> {
    let parse = |text: Option<String>| text.map(|t| Proxy::parse(&t)).transpose();
    if option == Some("") {
        return Ok(ProxyRules::default());
    }
    if let Some(proxy) = option {
        let proxy = parse(Some(proxy.to_owned()))?;
        return Ok(ProxyRules {
            http: proxy.clone(),
            https: proxy,
            direct: Vec::new(),
        });
    }
    let direct = env::first(&["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let mut direct: Vec<String> = direct
        .split(',')
        .map(|h| h.trim().to_ascii_lowercase())
        .filter(|h| !h.is_empty())
        .collect();
    // A proxy of the environment is for the outside.
    direct.extend(["localhost", "127.0.0.1", "::1", "169.254.169.254", "169.254.170.2"].map(str::to_owned));
    Ok(ProxyRules {
        http: parse(env::first(&["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]))?,
        https: parse(env::first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]))?,
        direct,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amazon_addresses_follow_name_and_region() {
        let site = amazon_site("data", "eu-west-1", None).unwrap();
        assert_eq!(
            (site.origin.authority(), site.path.as_str()),
            ("data.s3.eu-west-1.amazonaws.com", "")
        );
        let site = amazon_site("my.data", "cn-north-1", None).unwrap();
        assert_eq!(
            (site.origin.authority(), site.path.as_str()),
            ("s3.cn-north-1.amazonaws.com.cn", "/my.data")
        );
    }
}
