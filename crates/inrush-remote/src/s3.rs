//! A bucket of S3, or of a store that speaks its protocol: `s3://bucket/prefix`.
//!
//! The environment tells the rest, as for other programs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
//! `AWS_REGION` or `AWS_DEFAULT_REGION`, and `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` for other stores, whose buckets are folders
//! of the address. Without credentials requests are not signed: public buckets can be read.

use inrush_base::{Error, Result};
use inrush_runtime::remote::{LARGEST, Settings, Tier};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::http::Response;

/// Time for which a signed request is valid.
const VALID: Duration = Duration::from_secs(300);

struct S3 {
    bucket: Bucket,
    prefix: String,
    credentials: Option<Credentials>,
    agent: Agent,
}

fn variable(names: &[&str]) -> Option<String> {
    let one = |n: &&str| std::env::var(n).ok().filter(|v| !v.is_empty());
    names.iter().find_map(one)
}

pub(crate) fn open(settings: &Settings) -> Result<Arc<dyn Tier>> {
    let rest = settings.url.strip_prefix("s3://").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let region = variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
    let region = region.unwrap_or_else(|| "us-east-1".into());
    let given = variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
    let style = match given {
        Some(_) => UrlStyle::Path,
        None => UrlStyle::VirtualHost,
    };
    let endpoint = given.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let wrong =
        |e: &dyn std::fmt::Display| Error::input(format!("its address cannot be read: {e}"));
    if bucket.is_empty() {
        return Err(wrong(&"it names no bucket"));
    }
    let endpoint = endpoint.parse().map_err(|e| wrong(&e))?;
    let bucket = Bucket::new(endpoint, style, bucket.to_string(), region).map_err(|e| wrong(&e))?;
    let credentials = match (
        variable(&["AWS_ACCESS_KEY_ID"]),
        variable(&["AWS_SECRET_ACCESS_KEY"]),
    ) {
        (Some(key), Some(secret)) => Some(match variable(&["AWS_SESSION_TOKEN"]) {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        }),
        _ => None,
    };
    let config = Agent::config_builder()
        .timeout_connect(Some(settings.connect))
        .timeout_send_request(Some(settings.read))
        .timeout_send_body(Some(settings.longest_request()))
        .timeout_recv_response(Some(settings.read))
        .timeout_recv_body(Some(settings.longest_request()))
        .http_status_as_error(false)
        // A signature is for one address.
        .max_redirects(0)
        .build();
    Ok(Arc::new(S3 {
        bucket,
        prefix: prefix.trim_matches('/').to_string(),
        credentials,
        agent: config.into(),
    }))
}

fn fail(e: ureq::Error) -> Error {
    Error::machine(match e {
        ureq::Error::Timeout(_) => "it does not answer in time".to_string(),
        // The address has the signature.
        e => e.to_string(),
    })
}

/// Returns the error of an unexpected status.
fn refused<T>(answer: &Response<T>) -> Error {
    let hint = match answer.status().as_u16() {
        401 | 403 => ": do the AWS_ variables allow to get, put and list in this bucket?",
        301 | 307 => ": is AWS_REGION the bucket's?",
        404 => ": is there such a bucket?",
        _ => "",
    };
    Error::machine(format!("it answers {}{hint}", answer.status()))
}

impl S3 {
    fn path(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.into(),
            prefix => format!("{prefix}/{name}"),
        }
    }
}

impl Tier for S3 {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let request = self.bucket.get_object(self.credentials.as_ref(), &path);
        let url = request.sign(VALID).to_string();
        let mut answer = self.agent.get(url).call().map_err(fail)?;
        match answer.status().as_u16() {
            200 => {
                let body = answer.body_mut().with_config().limit(LARGEST as u64 + 1);
                match body.read_to_vec() {
                    Ok(bytes) => Ok(Some(bytes)),
                    // Nothing that is so large is an entry.
                    Err(ureq::Error::BodyExceedsLimit(_)) => Ok(Some(Vec::new())),
                    Err(e) => Err(fail(e)),
                }
            }
            404 => Ok(None),
            _ => Err(refused(&answer)),
        }
    }

    fn put(&self, name: &str, entry: &[u8]) -> Result<()> {
        let path = self.path(name);
        let request = self.bucket.put_object(self.credentials.as_ref(), &path);
        let url = request.sign(VALID).to_string();
        let answer = self.agent.put(url).send(entry).map_err(fail)?;
        if answer.status().is_success() {
            Ok(())
        } else {
            Err(refused(&answer))
        }
    }

    fn ping(&self) -> Result<()> {
        // A missing entry is an answer; a bucket's listing may be forbidden.
        self.get("ping/none").map(drop)
    }
}
