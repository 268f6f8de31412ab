// Limits and timeouts of connections, with a handler that answers at the test's word.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "../../e2e/serve/http_client.h"
#include "echo_server.h"

namespace hadal::serving {
namespace {

using std::chrono::milliseconds;
using test::Answer;
using test::Client;
using test::Echo;
using test::kComment;
using test::RequestText;
using test::Served;

constexpr milliseconds kShort{150};

// The server notices some time later that a connection has ended.
int StatusOnceThereIsRoom(int port) {
  int status = 503;
  for (int i = 0; i < 6000 && status != 200; ++i) {
    status = Client(port).Post("/echo", "a").status;
    if (status != 200) std::this_thread::sleep_for(milliseconds(10));
  }
  return status;
}

std::string HeadOfPost(size_t length) {
  return fmt::format("POST /echo HTTP/1.1\r\nContent-Length: {}\r\n\r\n", length);
}

TEST(HttpServer, AHeaderThatTakesTooLongIs408) {
  Served served({.header_timeout = kShort});
  Client client(served.port());
  client.Send("GET /echo HTTP/1.1\r\nHost: a");
  const Answer answer = client.Read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.body, "the header of the request took too long");
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(client.Closed());
  // One byte now and then is no progress.
  Client trickle(served.port());
  std::thread sender([&] {
    for (int i = 0; i < 200 && trickle.Send("G"); ++i) std::this_thread::sleep_for(milliseconds(10));
  });
  EXPECT_EQ(trickle.Read().status, 408);
  sender.join();
}

TEST(HttpServer, ABodyThatTakesTooLongIs408) {
  Served served({.body_timeout = kShort});
  Client client(served.port());
  client.Send(HeadOfPost(100) + "half of it");
  const Answer answer = client.Read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.body, "the body of the request took too long");
  EXPECT_TRUE(client.Closed());
  // A body in time on another connection is not held up, nor is a request that is answered late.
  Client late(served.port());
  late.Send(RequestText("POST", "/hold", "{}"));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  std::this_thread::sleep_for(2 * kShort);
  served.server().Post([exchange] { exchange->Send(Echo::Text("late")); });
  EXPECT_EQ(late.Read().body, "late");
}

TEST(HttpServer, IdleConnectionsEnd) {
  Served served({.idle_timeout = kShort});
  Client never(served.port()), once(served.port());
  EXPECT_EQ(once.Post("/echo", "a").body, "a");
  EXPECT_EQ(once.Post("/echo", "b").body, "b");
  EXPECT_TRUE(never.Closed());
  EXPECT_TRUE(once.Closed());
}

TEST(HttpServer, SilentStreamsAreKeptAlive) {
  Served served({.keep_alive = milliseconds(20)});
  Client client(served.port());
  client.Send(RequestText("POST", "/stream", "{}"));
  EXPECT_EQ(client.ReadHead().status, 200);
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  std::string read;
  while (read.size() < 3 * std::string_view(kComment).size()) {
    const std::string more = client.ReadSome();
    ASSERT_NE(more, "");
    read += more;
  }
  served.server().Post([exchange] {
    exchange->Write("data: 1\n\n");
    exchange->EndStream();
  });
  for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) read += more;
  // Comments, the piece, nothing behind it.
  ASSERT_TRUE(read.ends_with("data: 1\n\n")) << read;
  read.resize(read.size() - std::string_view("data: 1\n\n").size());
  std::string comments;
  while (comments.size() < read.size()) comments += kComment;
  EXPECT_EQ(read, comments);
}

TEST(HttpServer, MoreConnectionsThanAllowedAreTurnedAway) {
  Served served({.max_connections = 2});
  auto first = std::make_unique<Client>(served.port());
  Client second(served.port());
  EXPECT_EQ(first->Post("/echo", "a").status, 200);
  EXPECT_EQ(second.Post("/echo", "a").status, 200);
  {
    Client third(served.port());
    const Answer answer = third.Read();  // without a word of ours
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.body, "too many connections: try again later");
    EXPECT_TRUE(third.Closed());
  }
  EXPECT_EQ(second.Post("/echo", "b").body, "b");
  first.reset();
  EXPECT_EQ(StatusOnceThereIsRoom(served.port()), 200);
}

TEST(HttpServer, BodiesThatAreHeldAreBounded) {
  Served served({.max_bodies_bytes = size_t{100} << 10});
  const std::string body(size_t{60} << 10, 'a');
  Client first(served.port()), second(served.port());
  first.Send(RequestText("POST", "/hold", body));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  EXPECT_EQ(second.Post("/echo", body).status, 503);
  EXPECT_EQ(Client(served.port()).Post("/echo", "a little").body, "a little");
  served.server().Post([&served, exchange] {
    served.handler.kept = {};
    exchange->Send(Echo::Text("done"));
  });
  EXPECT_EQ(first.Read().body, "done");
  EXPECT_EQ(first.Post("/echo", body).body, body);
  EXPECT_EQ(first.Post("/echo", body + body).status, 503);
}

TEST(HttpServer, AnAnswerThatIsNotReadIsGivenUp) {
  Served served({.max_connections = 1, .write_timeout = kShort});
  Client client(served.port(), 4096);
  client.Send(RequestText("POST", "/large", "{}"));
  EXPECT_EQ(client.ReadHead().status, 200);
  EXPECT_EQ(StatusOnceThereIsRoom(served.port()), 200);  // its connection has ended
}

TEST(HttpServer, AStreamThatIsNotReadIsGivenUpBeforeItFillsMemory) {
  Served served({.max_unsent_bytes = size_t{64} << 10});
  Client client(served.port(), 4096);
  client.Send(RequestText("POST", "/stream", "{}"));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  const std::string piece(size_t{16} << 10, 'a');
  int pieces = 0;
  for (; pieces < 6000 && served.handler.gone == 0; ++pieces) {
    served.server().Post([exchange, &piece] { exchange->Write(piece); });
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(served.handler.gone, 1);
  EXPECT_LT(pieces, 6000);
}

TEST(HttpServer, AHandlerThatFailsEndsItsConnectionAlone) {
  Served served;
  Client other(served.port());
  EXPECT_EQ(other.Post("/echo", "a").status, 200);
  Client client(served.port());
  client.Send(RequestText("POST", "/throw", "{}"));
  EXPECT_EQ(client.Read().status, 0);
  EXPECT_EQ(other.Post("/echo", "b").body, "b");
}

TEST(HttpServer, RefusedBeforeTheBodyIsRead) {
  Served served;
  Client client(served.port());
  client.Send("POST /refuse HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 403);
  EXPECT_TRUE(client.Closed());
  // Without a body the connection goes on.
  Client bare(served.port());
  bare.Send("GET /refuse HTTP/1.1\r\n\r\n");
  EXPECT_EQ(bare.Read().status, 403);
  EXPECT_EQ(bare.Post("/echo", "a").body, "a");
}

TEST(HttpServer, StopsBehindTheAnswersThatItIsAt) {
  Served served;
  Client idle(served.port()), held(served.port());
  EXPECT_EQ(idle.Post("/echo", "a").status, 200);
  held.Send(RequestText("POST", "/hold", "{}"));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  served.server().Stop(std::chrono::minutes(5));
  EXPECT_TRUE(idle.Closed());
  served.server().Post([exchange] { exchange->Send(Echo::Text("done")); });
  EXPECT_EQ(held.Read().body, "done");
  EXPECT_TRUE(held.Closed());
  served.Join();  // long before the five minutes
}

TEST(HttpServer, GivesUpAtTheDeadline) {
  Served served;
  Client held(served.port());
  held.Send(RequestText("POST", "/hold", "{}"));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  served.server().Stop(kShort);
  served.Join();
}

TEST(HttpServer, InterleavedStreamsAreEachTheirOwn) {
  constexpr int kClients = 64;
  Served served;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([i, port = served.port()] {
      Client client(port);
      for (int turn = 0; turn < 4; ++turn) {
        std::string body;
        for (int word = 0; word < 50; ++word) body += fmt::format("{}.{}.{} ", i, turn, word);
        const Answer answer = client.Post("/words", body);
        EXPECT_EQ(answer.status, 200);
        EXPECT_EQ(answer.body, body);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served.handler.gone, 0);
}

// Clients that leave at any moment, beside ones that stay.
TEST(HttpServer, AThousandClientsThatLeaveAreForgotten) {
  constexpr int kThreads = 8, kEach = 125;
  Served served;
  std::string body;
  for (int word = 0; word < 500; ++word) body += fmt::format("{} ", word);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &body, port = served.port()] {
      for (int i = 0; i < kEach; ++i) {
        Client client(port);
        const std::string request = RequestText("POST", "/words", body);
        const int leave = (t * kEach + i) % 4;
        client.Send(leave == 0 ? request.substr(0, request.size() / 2) : request);
        if (leave == 1) continue;
        if (leave == 2) client.ReadHead();
        if (leave == 3) {
          EXPECT_EQ(client.Read().body, body);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Client(served.port()).Post("/words", body).body, body);
  EXPECT_LE(served.handler.gone, kThreads * kEach / 2);
}

}  // namespace
}  // namespace hadal::serving
