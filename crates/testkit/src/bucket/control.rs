//! The control endpoint: counters, faults, timing and keys as JSON, unsigned, on loopback.
//!
//! | request | does |
//! | --- | --- |
//! | `GET /_testkit/counters[?objects=1]` | the [`Counts`](super::Counts), with those of each object |
//! | `POST /_testkit/reset` | sets the counts to zero, attempts included |
//! | `GET /_testkit/faults` | the faults with `seen` and `hit` |
//! | `POST /_testkit/faults` | adds one [`Fault`] or a list of them |
//! | `PUT /_testkit/faults` | replaces all faults by a list |
//! | `DELETE /_testkit/faults` | removes all faults |
//! | `GET`, `PUT /_testkit/profile` | the [`Profile`]: a name as a JSON string, or all values |
//! | `GET`, `PUT /_testkit/keys` | the [`Keys`] |
//! | `POST /_testkit/touch` | `{"bucket": ..., "key": ...}`: a synthetic object's next version |

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::Keys;
use super::body::Reply;
use super::fault::Fault;
use super::profile::Profile;
use super::server::State;

/// What all paths of the control endpoint begin with; no bucket can be called so.
pub const PREFIX: &str = "/_testkit/";

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Fault),
    Many(Vec<Fault>),
}

#[derive(Deserialize)]
struct Touched {
    bucket: String,
    key: String,
}

/// Answers a request to the control endpoint.
pub async fn answer(state: &Arc<State>, parts: &Parts, body: Incoming) -> Response<Reply> {
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return json_response(StatusCode::BAD_REQUEST, &json!(error.to_string())),
    };
    match dispatch(state, parts, &body) {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(why) => json_response(StatusCode::BAD_REQUEST, &json!({ "error": why })),
    }
}

fn dispatch(state: &State, parts: &Parts, body: &[u8]) -> Result<Value, String> {
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or("");
    let done = || Ok(json!({ "ok": true }));
    match (&parts.method, path) {
        (&Method::GET, "health") => done(),
        (&Method::GET, "counters") => {
            let objects = parts.uri.query().is_some_and(|query| query.contains("objects=1"));
            to_json(&state.counters.snapshot(objects))
        }
        (&Method::POST, "reset") => {
            state.counters.reset();
            done()
        }
        (&Method::GET, "faults") => state.faults().list().iter().map(fault_json).collect(),
        (&Method::POST | &Method::PUT, "faults") => {
            let faults = match read(body)? {
                OneOrMany::One(fault) => vec![fault],
                OneOrMany::Many(faults) => faults,
            };
            faults.iter().try_for_each(Fault::check)?;
            if parts.method == Method::PUT {
                state.faults().clear();
            }
            faults.into_iter().for_each(|fault| state.faults().add(fault));
            done()
        }
        (&Method::DELETE, "faults") => {
            state.faults().clear();
            done()
        }
        (&Method::GET, "profile") => to_json(&state.profile()),
        (&Method::PUT, "profile") => {
            let profile = match read(body)? {
                Value::String(name) => Profile::named(&name)?,
                value => serde_json::from_value(value).map_err(|error| error.to_string())?,
            };
            profile.check()?;
            state.set_profile(profile);
            done()
        }
        (&Method::GET, "keys") => to_json(&state.keys()),
        (&Method::PUT, "keys") => {
            state.set_keys(read::<Keys>(body)?);
            done()
        }
        (&Method::POST, "touch") => {
            let Touched { bucket, key } = read(body)?;
            if state.storage.touch(&bucket, &key) {
                return done();
            }
            Err(format!("{bucket}/{key} is not a synthetic object"))
        }
        (method, path) => Err(format!("there is no {method} {PREFIX}{path}")),
    }
}

fn fault_json((fault, seen, hit): &(Fault, u64, u64)) -> Result<Value, String> {
    let mut value = to_json(fault)?;
    value["seen"] = (*seen).into();
    value["hit"] = (*hit).into();
    Ok(value)
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is malformed: {error}"))
}

fn to_json(value: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

fn json_response(status: StatusCode, value: &Value) -> Response<Reply> {
    let mut response = Response::new(Reply::from(format!("{value}\n")));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
