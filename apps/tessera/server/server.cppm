export module tessera.app.server;

export import :chat_request;  // what clients ask for and get, as JSON
export import :jobs;          // answers that clients wait for, one after the other
export import :serve;         // the HTTP server
