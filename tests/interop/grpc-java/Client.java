import io.grpc.CallOptions;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * A client of grpc-java that calls its target over and over, and prints each result as one line of JSON, as
 * tests/interop/grpc_client.py does. Runs until stdin is closed. Or one that makes one request: see {@link #body}.
 */
public final class Client {
  private static final MethodDescriptor.Marshaller<String> TEXT = new MethodDescriptor.Marshaller<>() {
    @Override
    public InputStream stream(String text) {
      return new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public String parse(InputStream bytes) {
      try {
        return new String(bytes.readAllBytes(), StandardCharsets.UTF_8);
      } catch (IOException e) {
        throw new IllegalStateException(e);
      }
    }
  };

  private static final MethodDescriptor<String, String> GREET = MethodDescriptor.newBuilder(TEXT, TEXT)
      .setType(MethodDescriptor.MethodType.UNARY)
      .setFullMethodName("interop.Greeter/Greet")
      .build();

  private static final MethodDescriptor.Marshaller<byte[]> AS_IS = new MethodDescriptor.Marshaller<>() {
    @Override
    public InputStream stream(byte[] bytes) {
      return new ByteArrayInputStream(bytes);
    }

    @Override
    public byte[] parse(InputStream bytes) {
      try {
        return bytes.readAllBytes();
      } catch (IOException e) {
        throw new IllegalStateException(e);
      }
    }
  };

  private Client() {}

  /** Opens a stream: the request is what stdin holds, the first response goes to stdout. */
  private static void body(String address, String method, int window) throws IOException {
    MethodDescriptor<byte[], byte[]> call = MethodDescriptor.newBuilder(AS_IS, AS_IS)
        .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
        .setFullMethodName(method.substring(1))
        .build();
    ManagedChannel channel = NettyChannelBuilder.forTarget(address)
        .usePlaintext()
        .flowControlWindow(window)
        .maxInboundMessageSize(Integer.MAX_VALUE)
        .build();
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(300, TimeUnit.SECONDS);
    CompletableFuture<byte[]> response = new CompletableFuture<>();
    StreamObserver<byte[]> responses = new StreamObserver<>() {
      @Override
      public void onNext(byte[] message) {
        response.complete(message);
      }

      @Override
      public void onError(Throwable error) {
        response.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        response.completeExceptionally(new IllegalStateException("the stream ended without a response"));
      }
    };
    ClientCalls.asyncBidiStreamingCall(channel.newCall(call, options), responses).onNext(System.in.readAllBytes());
    System.out.write(response.join());
    System.out.flush();
    channel.shutdownNow();
  }

  public static void main(String[] args) throws InterruptedException, IOException {
    if (args[0].equals("body")) {
      body(args[1], args[2], Integer.parseInt(args[3]));
      return;
    }
    Thread exitsWithParent = new Thread(() -> {
      try {
        System.in.readAllBytes();
      } catch (IOException e) {
        // As good as closed.
      }
      Runtime.getRuntime().halt(0);
    });
    exitsWithParent.setDaemon(true);
    exitsWithParent.start();

    ManagedChannel channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
    while (true) {
      CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(30, TimeUnit.SECONDS);
      try {
        print("answer", ClientCalls.blockingUnaryCall(channel, GREET, options, ""), null);
      } catch (StatusRuntimeException e) {
        print("error", e.getStatus().getCode().name(), e.getStatus().getDescription());
      }
      Thread.sleep(50);
    }
  }

  private static void print(String key, String value, String details) {
    String more = details == null ? "" : ", \"details\": " + quoted(details);
    System.out.println("{" + quoted(key) + ": " + quoted(value) + more + "}");
  }

  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        json.append('\\').append(c);
      } else if (c < ' ') {
        json.append(String.format("\\u%04x", (int) c));
      } else {
        json.append(c);
      }
    }
    return json.append('"').toString();
  }
}
