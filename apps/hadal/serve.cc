// hadal serve: the model over HTTP.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "base/log.h"
#include "base/status.h"
#include "cli.h"
#include "engine_flags.h"
#include "serving/events/kv_event_publisher.h"
#include "serving/http/api.h"

namespace hadal::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  hadal serve models/tiny-v4-vision --port 8000\n"
    "  hadal serve /data/DeepSeek-V4-Flash --host 0.0.0.0 --api-key-file keys.txt --max-num-seqs 32\n"
    "docs/serving.md lists the routes.";

constexpr int64_t kServeMaxSeqs = 16;
constexpr std::chrono::seconds kFlushTime{10};  // for answers that are complete, once the engine has stopped

struct ServeFlags {
  EngineFlags engine;
  serving::HttpServerOptions http;
  serving::ApiOptions api;
  std::vector<std::string> keys, key_files;
  std::string kv_events;  // JSON; empty: none
  double drain_timeout = 30;
};

absl::Status ReadKeys(const ServeFlags& flags, serving::ApiKeys* keys) {
  for (const std::string& key : flags.keys) {
    if (key.empty()) return InvalidArgument("--api-key: expected a key, found none");
    keys->Add(key);
  }
  for (const std::string& path : flags.key_files) {
    std::ifstream file(path);
    size_t found = 0;
    for (std::string line; std::getline(file, line);) {
      while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
      if (line.empty() || line.starts_with('#')) continue;
      keys->Add(line);
      ++found;
    }
    if (found == 0) return InvalidArgument("--api-key-file {}: expected a key a line, found none", path);
  }
  return absl::OkStatus();
}

std::string UrlOf(const serving::HttpServerOptions& options, int port) {
  const char* scheme = options.tls_cert_file.empty() ? "http" : "https";
  const bool v6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", scheme, v6 ? "[" : "", options.host, v6 ? "]" : "", port);
}

serving::Metrics::Info InfoOf(const ServeFlags& flags, runtime::Engine* engine) {
  const models::ModelLimits& limits = engine->model().limits();
  return {.model_name = flags.api.model_names.front(),
          .max_model_len = engine->max_model_len(),
          .block_size = limits.block_size,
          .blocks = limits.cache_slabs,
          .cache_dtype = flags.engine.kv_cache_dtype()};
}

// Serves until a signal; then what runs has the time to end. A second signal does not wait.
void ServeUntilSignal(const ServeFlags& flags, serving::HttpServer* server, serving::Api* api,
                      runtime::Engine* engine) {
  runtime::Service service(&engine->executor(), flags.api.max_waiting);
  serving::Metrics metrics(InfoOf(flags, engine));
  std::promise<void> signalled;
  server->OnSignal([&signalled, count = 0]() mutable {
    if (count++ > 0) _exit(kInterrupted);
    signalled.set_value();
  });
  api->Start(engine, &service, &metrics);
  spdlog::info("{} on {}; {}", flags.api.model_names.front(), engine->description(), engine->CacheDescription());
  WriteOut(fmt::format("listening on {}\n", UrlOf(flags.http, server->port())));
  signalled.get_future().wait();

  spdlog::info("stopping: what runs has {:.0f} s to end", flags.drain_timeout);
  api->Drain();
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(flags.drain_timeout));
  if (!service.Drain(std::chrono::steady_clock::now() + timeout)) spdlog::warn("requests were cut off");
  server->Stop(kFlushTime);
}

absl::Status PublishKvEvents(ServeFlags* flags) {
  if (flags->kv_events.empty()) return absl::OkStatus();
  const absl::StatusOr<serving::KvEventOptions> options = serving::ParseKvEventsConfig(flags->kv_events);
  if (!options.ok()) return InvalidArgument("--kv-events-config: {}", Message(options.status()));
  if (!options->enabled) return absl::OkStatus();
  auto events = serving::MakeKvEventPublisher(*options);
  if (!events.ok()) {
    return {events.status().code(), fmt::format("--kv-events-config: {}", Message(events.status()))};
  }
  flags->engine.SetKvEvents(*std::move(events));
  return absl::OkStatus();
}

ExitCode CodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kUsage : absl::IsUnimplemented(status) ? kUnsupported : kInternal;
}

int Serve(ServeFlags flags) {
  if (const absl::Status status = ReadKeys(flags, &flags.api.keys); !status.ok()) return Fail(kUsage, Message(status));
  if (flags.http.tls_cert_file.empty() != flags.http.tls_key_file.empty()) {
    return Fail(kUsage, "--ssl-certfile and --ssl-keyfile: expected both or none");
  }
  if (flags.api.log_content) flags.api.log_requests = true;
  if (flags.api.model_names.empty()) flags.api.model_names = {flags.engine.model_name()};
  flags.api.version = HADAL_VERSION;
  flags.engine.SetDefaultMaxSeqs(kServeMaxSeqs);
  flags.engine.SetMaxWaiting(flags.api.max_waiting);
  spdlog::set_level(spdlog::level::info);
  if (const absl::Status status = PublishKvEvents(&flags); !status.ok()) return Fail(CodeOf(status), Message(status));

  // The port first: a supervisor that looks before the model is loaded is told so.
  absl::StatusOr<std::unique_ptr<serving::HttpServer>> server = serving::HttpServer::Listen(flags.http);
  if (!server.ok()) return Fail(CodeOf(server.status()), Message(server.status()));
  serving::Api api(flags.api, server->get());
  std::thread thread([&] { (*server)->Run(&api); });
  int code = kOk;
  const std::unique_ptr<runtime::Engine> engine = flags.engine.Load(&code);
  if (engine != nullptr) {
    ServeUntilSignal(flags, server->get(), &api, engine.get());
  } else {
    (*server)->Stop(std::chrono::milliseconds(0));
  }
  thread.join();
  return code;
}

}  // namespace

void AddServe(CLI::App* app, int* result) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* serve = app->add_subcommand("serve", "Answer requests over HTTP, as OpenAI's API has them");
  flags->engine.Register(serve);
  const std::string group = "Server";
  serve->add_option("--host", flags->http.host, "IP address to listen on; 0.0.0.0 or :: for all")
      ->capture_default_str()
      ->group(group);
  flags->http.port = 8000;
  serve->add_option("--port", flags->http.port, "0: any that is free; the one it is is printed")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  AddList(serve, "--served-model-name", &flags->api.model_names,
          "Name that requests may give; may be repeated, answers say the first [the directory's name]")
      ->group(group);
  AddList(serve, "--api-key", &flags->keys, "Key that clients must show; may be repeated [none needed]")->group(group);
  AddList(serve, "--api-key-file", &flags->key_files, "File with a key a line, which a list of processes does not show")
      ->group(group);
  serve
      ->add_option("--ssl-certfile", flags->http.tls_cert_file,
                   "PEM file of the server's certificate and those that vouch for it: HTTPS [HTTP]")
      ->group(group);
  serve->add_option("--ssl-keyfile", flags->http.tls_key_file, "PEM file of its private key")->group(group);
  AddList(serve, "--cors-origin", &flags->api.cors_origins,
          "Origin whose pages may send requests from a browser; * for all; may be repeated [none]")
      ->group(group);
  serve->add_option("--max-waiting", flags->api.max_waiting, "Requests that may wait; more are told to come again")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  serve->add_option("--max-body-size", flags->http.max_body_bytes, "Largest body of a request, with a unit")
      ->transform(CLI::AsSizeValue(false), "SIZE")
      ->default_str("64MiB")
      ->group(group);
  serve
      ->add_option("--response-store-size", flags->api.response_store_bytes,
                   "Memory for answers of /v1/responses, which later requests may continue, with a unit; the longest "
                   "unused go; 0: none is kept")
      ->transform(CLI::AsSizeValue(false), "SIZE")
      ->default_str("256MiB")
      ->group(group);
  serve
      ->add_option("--drain-timeout", flags->drain_timeout,
                   "Seconds that running requests have after SIGTERM or ^C; a second signal does not wait")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->group(group);
  serve
      ->add_option("--kv-events-config", flags->kv_events,
                   "Tell routers over ZeroMQ which prefixes are cached here: JSON as vLLM's flag takes it, such as "
                   "{\"endpoint\": \"tcp://*:5557\"} [off]")
      ->group(group);
  serve->add_flag("--log-requests", flags->api.log_requests, "A line on stderr for each request: times and counts")
      ->group(group);
  serve->add_flag("--log-content", flags->api.log_content, "Also what requests and answers say")->group(group);
  serve->footer(kExamples);
  serve->callback([=] { *result = Serve(*flags); });
}

}  // namespace hadal::cli
