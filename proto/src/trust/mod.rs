//! Who may call our gRPC services (proto/README.md, Trust): one place that checks callers and shows who we are.
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
//! Everybody may ask for health. What no table names is for our own parts only: a new service is closed until somebody opens it.
//!
//! * [`Door`]: a listener with its rule; there is no other way to serve gRPC. [`guard`]: the rule, for each request.
//! * [`Keys`], [`Token`]: what callers show. [`Credentials`]: what we show. [`place`]: where sockets lie that nobody named.

mod credentials;
mod door;
pub mod guard;
mod keys;
pub mod place;

pub use credentials::{Credentials, Token, TokenOptions};
pub use door::{Door, DoorError};
pub use guard::{Guard, Peer};
pub use keys::{Holder, KeyOptions, Keys, Need, sent};
