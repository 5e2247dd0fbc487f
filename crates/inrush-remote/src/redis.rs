//! A server that speaks Redis' protocol: `redis://user:password@host:port/db`.

use inrush_base::{Error, Result};
use inrush_runtime::remote::{LARGEST, Settings, Tier};
use redis::{Connection, RedisError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Begins the names of all entries: a server may hold other things too.
const PREFIX: &str = "inrush:";

struct Redis {
    client: redis::Client,
    connect: Duration,
    read: Duration,
    /// Connections that no request uses.
    idle: Mutex<Vec<Connection>>,
}

pub(crate) fn open(settings: &Settings) -> Result<Arc<dyn Tier>> {
    let client = redis::Client::open(settings.url.as_str())
        .map_err(|e| Error::input(format!("its address cannot be read: {e}")))?;
    Ok(Arc::new(Redis {
        client,
        connect: settings.connect,
        read: settings.read,
        idle: Mutex::new(Vec::new()),
    }))
}

fn fail(e: RedisError) -> Error {
    Error::machine(if e.is_timeout() {
        "it does not answer in time".to_string()
    } else {
        e.to_string()
    })
}

impl Redis {
    /// Makes a request on a connection of its own. One that failed is not used again. A server may have closed one that was idle:
    /// then the request, which may be made twice, is made on a new one.
    fn with<T>(&self, request: impl Fn(&mut Connection) -> redis::RedisResult<T>) -> Result<T> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        if let Some(mut connection) = kept {
            match request(&mut connection) {
                Ok(answer) => {
                    idle().push(connection);
                    return Ok(answer);
                }
                Err(e) if e.is_timeout() || !e.is_io_error() => return Err(fail(e)),
                // The others are as old.
                Err(_) => idle().clear(),
            }
        }
        let mut connection = {
            let made = self.client.get_connection_with_timeout(self.connect);
            let made = made.map_err(fail)?;
            made.set_read_timeout(Some(self.read)).map_err(fail)?;
            made.set_write_timeout(Some(self.read)).map_err(fail)?;
            made
        };
        let answer = request(&mut connection).map_err(fail)?;
        idle().push(connection);
        Ok(answer)
    }
}

impl Tier for Redis {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let key = format!("{PREFIX}{name}");
        self.with(|c| {
            // The client allocates what the server announces: ask first.
            let length: u64 = redis::cmd("STRLEN").arg(&key).query(c)?;
            if length == 0 {
                return Ok(None);
            }
            if length > LARGEST as u64 {
                return Ok(Some(Vec::new()));
            }
            redis::cmd("GET").arg(&key).query(c)
        })
    }

    fn put(&self, name: &str, entry: &[u8]) -> Result<()> {
        let key = format!("{PREFIX}{name}");
        self.with(|c| redis::cmd("SET").arg(&key).arg(entry).exec(c))
    }

    fn ping(&self) -> Result<()> {
        self.with(|c| redis::cmd("PING").exec(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Answers what the client says of itself, then one question, and closes the connection.
    fn answer_once(mut stream: TcpStream) -> Option<()> {
        let mut bytes = [0; 4096];
        loop {
            let n = stream.read(&mut bytes).ok().filter(|n| *n > 0)?;
            let said = String::from_utf8_lossy(&bytes[..n]).into_owned();
            for _ in said.matches("SETINFO") {
                stream.write_all(b"+OK\r\n").ok()?;
            }
            if said.contains("STRLEN") {
                return stream.write_all(b":0\r\n").ok();
            }
        }
    }

    #[test]
    fn a_connection_that_was_closed_while_idle_is_made_again() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in server.incoming().flatten() {
                answer_once(stream);
            }
        });
        let tier = open(&Settings::new(&format!("redis://127.0.0.1:{port}"), None)).expect("open");
        for _ in 0..3 {
            assert_eq!(tier.get("objects/aa").expect("answered"), None);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
