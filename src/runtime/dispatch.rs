//! Each request and its verb, as the row of the request in [`crate::config::commands::request`] names it.

use super::verb::Answer;
use super::{Done, Request, State, Verb};
use crate::config::commands::requests;

macro_rules! dispatch {
    ($(
        $(#[$doc:meta])*
        $variant:ident
            $( ( $($place:ident: $place_type:ty),+ ) )?
            $( { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty ),+ $(,)? } )?
            , $busy:expr => $verb:ident $(. $wait:tt)?;
    )+) => {
        impl Verb {
            pub(super) async fn carry_out(&mut self, request: Request) -> Done {
                match request {
                    $(
                        Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? =>
                            self.$verb($( $($place),+ )? $( $($field),+ )?) $(. $wait)?,
                    )+
                }
            }
        }
    };
}

requests!(dispatch);

impl Verb {
    async fn leave_queued(&mut self, request: Box<Request>) -> Done {
        Box::pin(self.carry_out(*request)).await
    }
}

impl State {
    fn end_unattended(&mut self) -> Done {
        self.quitting |= self.one_shot;
        Ok(())
    }

    fn end(&mut self) -> Done {
        self.quitting = true;
        Ok(())
    }

    pub(super) fn choose(&mut self, question: u64, key: char) -> Done {
        self.answered(question, Answer::Key(key));
        Ok(())
    }

    pub(super) fn choose_files(&mut self, question: u64, files: Vec<usize>) -> Done {
        self.answered(question, Answer::Files(files));
        Ok(())
    }

    pub(super) fn remember(&mut self, text: String) -> Done {
        self.remember_prompt(&text);
        Ok(())
    }
}
