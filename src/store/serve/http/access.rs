//! Which hosts and origins may ask.

use ::http::uri::PathAndQuery;
use ::http::{HeaderName, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use tonic::body::Body;

use super::super::Shared;
use super::super::tls::Peer;
use super::{error, set};

/// The origin that is told that it may see the answer.
pub(super) struct Allowed(Option<String>);

impl Allowed {
    /// Tells a browser what it may do with an answer.
    pub(super) fn mark(&self, response: &mut Response<Body>) {
        const HEADERS: [(HeaderName, &str); 2] = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "accept, content-type, authorization"),
        ];
        let Some(origin) = &self.0 else { return };
        for (name, value) in HEADERS {
            set(response, name, value);
        }
        set(response, header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
}

/// Lets a request in, or refuses it; an old name of the gateway's paths becomes the new one.
pub(super) fn check(
    shared: &Shared,
    peer: &Peer,
    request: &mut Request<Incoming>,
) -> Result<Allowed, Box<Response<Body>>> {
    if let Some(rest) = request.uri().path().strip_prefix("/v3beta/")
        && let Ok(path) = PathAndQuery::try_from(format!("/v3/{rest}"))
    {
        *request.uri_mut() = Uri::from(path);
    }
    let options = &shared.options;
    if !peer.is_tls {
        let host = host(request);
        if !is_listed(&options.host_whitelist, &host) {
            let refusal = error(StatusCode::MISDIRECTED_REQUEST, &unknown_host(&host));
            return Err(Box::new(refusal));
        }
    } else if options.gateway
        && peer.common_name.as_ref().is_some_and(|name| !name.is_empty())
        && request.uri().path().starts_with("/v3/")
        && shared.store.auth_status().is_ok_and(|status| status.enabled)
    {
        let line = "CommonName of client sending a request against gateway will be ignored and not \
                    used as expected";
        return Err(Box::new(error(StatusCode::BAD_REQUEST, line)));
    }
    if is_listed(&options.cors, "*") {
        return Ok(Allowed(Some("*".into())));
    }
    let origin = request.headers().get(header::ORIGIN).map(|origin| origin.to_str());
    let origin = origin.and_then(Result::ok).unwrap_or_default();
    Ok(Allowed(is_listed(&options.cors, origin).then(|| origin.to_owned())))
}

/// Nothing at all in a list, or a star, stands for everybody.
fn is_listed(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|listed| listed == "*" || listed == name)
}

/// Returns the name of the host that is asked, without its port.
fn host(request: &Request<Incoming>) -> String {
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let named = request.uri().authority().map(|authority| authority.as_str()).or(named);
    let named = named.unwrap_or_default();
    let without_port = match named.rsplit_once(':') {
        Some((host, _)) => match host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            Some(inner) => inner,
            // More than one colon, and no brackets: it is all host.
            None if host.contains(':') => named,
            None => host,
        },
        None => named,
    };
    without_port.to_owned()
}

fn unknown_host(host: &str) -> String {
    format!(
        "
etcd received your request, but the Host header was unrecognized.

To fix this, choose one of the following options:
- Enable TLS, then any HTTPS request will be allowed.
- Add the hostname you want to use to the whitelist in settings.
  - e.g. etcd --host-whitelist {}

This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).
",
        super::json::quote(host.as_bytes())
    )
}
