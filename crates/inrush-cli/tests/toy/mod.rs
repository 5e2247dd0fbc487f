//! Toy servers that speak enough of Redis' protocol and of HTTP for the second tier of the cache, and fail on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A way in which a server fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    /// Accepts connections and says nothing.
    Hangs,
    /// Sends half of an answer with contents, then nothing.
    Stalls,
    /// Sends half of an answer with contents, then closes.
    Cuts,
    /// Sends answers with contents byte by byte.
    Drips,
    /// Sends something else.
    Garbage,
    /// Answers with an error.
    Refuses,
    /// Sends contents with one bit that is wrong.
    FlipsABit,
}

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Redis,
    S3,
}

/// A server in threads of this process.
pub(crate) struct Server {
    pub(crate) port: u16,
    kind: Kind,
    fault: Arc<Mutex<Fault>>,
    stored: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            port: listener.local_addr().unwrap().port(),
            kind,
            fault: Arc::new(Mutex::new(Fault::None)),
            stored: Arc::default(),
        };
        let (fault, stored) = (server.fault.clone(), server.stored.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (fault, stored) = (fault.clone(), stored.clone());
                std::thread::spawn(move || {
                    let client = Client {
                        reader: BufReader::new(stream),
                        fault: *fault.lock().unwrap(),
                        stored,
                    };
                    match kind {
                        Kind::Redis => client.redis(),
                        Kind::S3 => client.http(),
                    }
                });
            }
        });
        server
    }

    /// Has connections that are made from now on fail.
    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Returns the names of what is stored.
    pub(crate) fn names(&self) -> Vec<String> {
        self.stored.lock().unwrap().keys().cloned().collect()
    }

    /// Returns the variables of the environment that name it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        match self.kind {
            Kind::Redis => {
                let url = format!("redis://me:password@127.0.0.1:{}/3", self.port);
                vec![("INRUSH_REMOTE_CACHE", url)]
            }
            Kind::S3 => vec![
                ("INRUSH_REMOTE_CACHE", "s3://bucket/some/prefix".into()),
                (
                    "AWS_ENDPOINT_URL",
                    format!("http://127.0.0.1:{}", self.port),
                ),
                ("AWS_ACCESS_KEY_ID", "me".into()),
                ("AWS_SECRET_ACCESS_KEY", "password".into()),
            ],
        }
    }
}

struct Client {
    reader: BufReader<TcpStream>,
    fault: Fault,
    stored: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Client {
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(n) if n > 0 => Some(line.trim_end().to_string()),
            _ => None,
        }
    }

    fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; count];
        self.reader.read_exact(&mut out).ok()?;
        Some(out)
    }

    /// Sends an answer; None ends the connection. Faults of contents show where there are contents.
    fn say(&mut self, head: &str, contents: &[u8], tail: &str) -> Option<()> {
        let mut all = [head.as_bytes(), contents, tail.as_bytes()].concat();
        let stream = self.reader.get_mut();
        let half = all.len() / 2;
        match self.fault {
            Fault::Hangs => std::thread::sleep(Duration::from_secs(60)),
            Fault::Garbage => stream.write_all(b"\x00\xff\x17 what?\r\n\r\n").ok()?,
            _ if contents.is_empty() => stream.write_all(&all).ok()?,
            Fault::Stalls => {
                stream.write_all(&all[..half]).ok()?;
                std::thread::sleep(Duration::from_secs(60));
            }
            Fault::Cuts => {
                stream.write_all(&all[..half]).ok()?;
                return None;
            }
            Fault::Drips => {
                for byte in all {
                    stream.write_all(&[byte]).ok()?;
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            Fault::FlipsABit => {
                all[head.len() + contents.len() / 2] ^= 4;
                stream.write_all(&all).ok()?;
            }
            Fault::None | Fault::Refuses => stream.write_all(&all).ok()?,
        }
        Some(())
    }

    fn redis(mut self) {
        while self.redis_command().is_some() {}
    }

    fn redis_command(&mut self) -> Option<()> {
        let count: usize = self.line()?.strip_prefix('*')?.parse().ok()?;
        let mut words = Vec::new();
        for _ in 0..count {
            let length: usize = self.line()?.strip_prefix('$')?.parse().ok()?;
            words.push(self.bytes(length)?);
            self.bytes(2)?;
        }
        let text =
            |k: usize| String::from_utf8_lossy(words.get(k).map_or(&[][..], |w| w)).into_owned();
        let (command, key) = (text(0).to_uppercase(), text(1));
        let found = self.stored.lock().unwrap().get(&key).cloned();
        match command.as_str() {
            _ if self.fault == Fault::Refuses => self.say("-OOM command not allowed\r\n", b"", ""),
            "AUTH" if text(1) == "me" && text(2) == "password" => self.say("+OK\r\n", b"", ""),
            "SELECT" if text(1) == "3" => self.say("+OK\r\n", b"", ""),
            "CLIENT" => self.say("+OK\r\n", b"", ""),
            "PING" => self.say("+PONG\r\n", b"", ""),
            "STRLEN" => self.say(&format!(":{}\r\n", found.map_or(0, |f| f.len())), b"", ""),
            "GET" => match found {
                Some(f) => self.say(&format!("${}\r\n", f.len()), &f, "\r\n"),
                None => self.say("$-1\r\n", b"", ""),
            },
            "SET" => {
                self.stored.lock().unwrap().insert(key, words[2].clone());
                self.say("+OK\r\n", b"", "")
            }
            other => panic!("a command that is not expected: {other}"),
        }
    }

    fn http(mut self) {
        while self.http_request().is_some() {}
    }

    fn http_request(&mut self) -> Option<()> {
        let line = self.line()?;
        let mut length = 0;
        loop {
            let header = self.line()?.to_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(n) = header.strip_prefix("content-length:") {
                length = n.trim().parse().ok()?;
            }
        }
        let body = self.bytes(length)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?')?;
        let signed = query.contains("X-Amz-Signature=") && query.contains("X-Amz-Credential=me%2F");
        let status = |s: &str| format!("HTTP/1.1 {s}\r\nContent-Length: 0\r\n\r\n");
        if self.fault == Fault::Refuses || !signed {
            return self.say(&status("403 Forbidden"), b"", "");
        }
        match method {
            "GET" => {
                let found = self.stored.lock().unwrap().get(path).cloned();
                match found {
                    Some(f) => {
                        let head =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", f.len());
                        self.say(&head, &f, "")
                    }
                    None => self.say(&status("404 Not Found"), b"", ""),
                }
            }
            "PUT" => {
                self.stored.lock().unwrap().insert(path.into(), body);
                self.say(&status("200 OK"), b"", "")
            }
            other => panic!("a method that is not expected: {other}"),
        }
    }
}
