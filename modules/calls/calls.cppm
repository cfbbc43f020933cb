// Calls between ranks: collective calls as data, and the error that ends a run.
export module tessera.calls;

export import :call;      // what a call is: kind, type, count, its printed form
export import :segments;  // the tensors of a call that moves many
export import :forms;  // each kind of call as data: who reads what of whom, and how it is combined
export import :first_error;  // the error that ends a run
export import :clock;        // the clock that the times of calls are on
