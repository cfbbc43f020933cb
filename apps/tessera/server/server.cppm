export module tessera.app.server;

export import :http_message;  // requests and answers of HTTP, and the limits of what is read
export import :http_server;   // connections, within limits and without a thread for each
export import :access;        // who may use the model
export import :chat_request;  // what clients ask for and get, as JSON
export import :jobs;          // answers that clients wait for, one after the other
export import :serve;         // chat completions over HTTP
