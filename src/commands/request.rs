//! Makes the type of requests to the desk of the list in [`super::table`]: the enum, what each may do while the model is
//! busy, and the trait of whoever carries them out.

pub use super::table::{Execute, Request};

/// Whether a request can be served while the model reads or answers: it looks, or changes what the next answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    /// Runs at once.
    Runs,
    /// Is queued.
    Waits,
    /// Goes to another conversation: what goes on goes on behind it. Is queued where the engine has no room for another one.
    Leaves,
    /// Is done in a conversation of its own beside what goes on. Is queued where there is no room for that.
    Apart,
}

/// `Variant(field: Type) [or { field: Type }], while busy => verb;`
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $variant:ident
            $( ( $($place:ident: $place_type:ty),+ ) )?
            $( { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty ),+ $(,)? } )?
            , $busy:expr => $verb:ident;
    )+) => {
        /// Interface to desk. `#N` numbers are message numbers of the open branch, as shown.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $( $(#[$doc])* $variant $( ( $($place_type),+ ) )? $( { $( $(#[$field_doc])* $field: $field_type ),+ } )?, )+
        }

        /// Carries requests out: one verb for each.
        pub trait Execute {
            /// What carrying one out gives.
            type Done;
            $(
                $(#[$doc])*
                fn $verb(&mut self $( $(, $place: $place_type)+ )? $( $(, $field: $field_type)+ )?) -> Self::Done;
            )+
        }

        impl Request {
            /// Whether it can be served while the model reads or answers.
            #[allow(unused_variables)]
            pub fn while_busy(&self) -> WhileBusy {
                use WhileBusy::{Apart, Leaves, Runs, Waits};
                match self {
                    $( Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? => $busy, )+
                }
            }

            /// Has it carried out.
            pub fn execute<E: Execute>(self, on: &mut E) -> E::Done {
                match self {
                    $(
                        Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? =>
                            on.$verb($( $($place),+ )? $( $($field),+ )?),
                    )+
                }
            }
        }
    };
}

pub(super) use requests;
