//! Access to Muster's gRPC services (proto/README.md, Trust): checks callers, and provides clients' credentials.
//!
//! ```text
//!   door       listens on          who comes in                                    what they may call
//!   parts      unix:PATH (0600)    this user's processes and root (SO_PEERCRED)    everything
//!              HOST:PORT           whoever shows the token                         everything
//!                                  whoever shows the admin key                     what operators may
//!   operators  loopback, or with   as the admin HTTP routes: everybody without     Control, Models, reflection
//!              keys anywhere       keys, else whoever shows the admin key
//! ```
//!
//! Everybody may ask for health. A method that no table names is only for Muster's own processes, so a new service is closed until it is
//! opened on purpose.
//!
//! * [`Door`]: a listener with its rule; there is no other way to serve gRPC. [`guard`]: the rule, checked for each request.
//! * [`Keys`], [`Token`]: what callers must send. [`Credentials`]: what clients send. [`place`]: default places of sockets.

mod credentials;
mod door;
pub mod guard;
mod keys;
pub mod place;

pub use credentials::{Credentials, Token, TokenOptions};
pub use door::{Door, DoorError};
pub use guard::{Guard, Peer};
pub use keys::{Holder, KeyOptions, Keys, Need, sent};
