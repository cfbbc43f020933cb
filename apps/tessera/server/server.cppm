export module tessera.app.server;

export import :http_message;     // requests and answers of HTTP, and the limits of what is read
export import :http_server;      // connections, within limits and without a thread for each
export import :access;           // who may use the model
export import :text_request;     // what clients ask for, as JSON
export import :answer_format;    // what they get
export import :server_counts;    // what a server has done, for those who watch it
export import :served_adapters;  // adapters that requests choose by their names
export import :jobs;             // texts that clients wait for, one after the other
export import :embeddings;       // vectors of texts
export import :serve;            // texts over HTTP
