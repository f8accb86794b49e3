import com.google.protobuf.Any;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.envoyproxy.controlplane.cache.Resources;
import io.envoyproxy.controlplane.cache.v3.SimpleCache;
import io.envoyproxy.controlplane.cache.v3.Snapshot;
import io.envoyproxy.controlplane.server.V3DiscoveryServer;
import io.envoyproxy.envoy.config.cluster.v3.Cluster;
import io.envoyproxy.envoy.config.endpoint.v3.ClusterLoadAssignment;
import io.envoyproxy.envoy.config.listener.v3.Listener;
import io.envoyproxy.envoy.config.route.v3.RouteConfiguration;
import io.envoyproxy.envoy.extensions.filters.http.router.v3.Router;
import io.envoyproxy.envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.Secret;
import io.grpc.Server;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;

/**
 * A control plane of the interop tests: java-control-plane's own server on a SimpleCache with one snapshot for all
 * nodes. Flags, control API and announcement are those of tests/interop/origin, as far as the tests use them.
 */
public final class Origin {
  private static final String EVERY_NODE = "every node";

  private static final Map<String, Message> SERVED = new HashMap<>();

  static {
    for (Message message : Arrays.asList(Cluster.getDefaultInstance(), ClusterLoadAssignment.getDefaultInstance(),
        Listener.getDefaultInstance(), RouteConfiguration.getDefaultInstance(), Secret.getDefaultInstance())) {
      SERVED.put("type.googleapis.com/" + message.getDescriptorForType().getFullName(), message);
    }
  }

  private final JsonFormat.Parser parser = JsonFormat.parser().usingTypeRegistry(JsonFormat.TypeRegistry.newBuilder()
      .add(Arrays.asList(Cluster.getDescriptor(), ClusterLoadAssignment.getDescriptor(), Listener.getDescriptor(),
          RouteConfiguration.getDescriptor(), Secret.getDescriptor(), HttpConnectionManager.getDescriptor(),
          Router.getDescriptor()))
      .build());
  private final SimpleCache<String> cache = new SimpleCache<>(node -> EVERY_NODE);
  private final Map<String, Map<String, Message>> resources = new HashMap<>();
  private final Map<String, Integer> versions = new HashMap<>();
  private final Server xds;
  private boolean started;

  private Origin(InetSocketAddress listen) throws IOException {
    for (String type : SERVED.keySet()) {
      resources.put(type, new TreeMap<>());
      versions.put(type, 1);
    }
    publish();
    xds = NettyServerBuilder.forAddress(listen)
        .maxInboundMessageSize(64 << 20)
        .addService(new V3DiscoveryServer(cache).getAggregatedDiscoveryServiceImpl())
        .build();
  }

  public static void main(String[] args) throws IOException {
    String[] listen = args[Arrays.asList(args).indexOf("--listen") + 1].split(":");
    InetSocketAddress address = new InetSocketAddress(listen[0], Integer.parseInt(listen[1]));
    Origin origin = new Origin(address);
    if (!Arrays.asList(args).contains("--paused")) {
      origin.resume();
    }
    HttpServer control = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    control.createContext("/", origin::handle);
    control.setExecutor(Executors.newSingleThreadExecutor());
    control.start();
    System.out.printf("{\"xds\": \"127.0.0.1:%d\", \"control\": \"127.0.0.1:%d\", \"version\": \"%s\"}%n",
        address.getPort(), control.getAddress().getPort(), version());
    // The other end of its stdin is held by the process that started it.
    while (System.in.read() >= 0) { }
    Runtime.getRuntime().halt(0);
  }

  /** The version of java-control-plane, from the name of its jar. */
  private static String version() {
    String jar = SimpleCache.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return jar.replaceAll(".*/cache-(.*)\\.jar", "v$1");
  }

  private synchronized void resume() throws IOException {
    if (!started) {
      xds.start();
      started = true;
    }
  }

  private synchronized void handle(HttpExchange exchange) throws IOException {
    String call = exchange.getRequestMethod() + " " + exchange.getRequestURI().getPath();
    byte[] answer = {};
    int status = 204;
    try {
      switch (call) {
        case "PUT /resource":
          put(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
          break;
        case "DELETE /resource":
          Map<String, String> query = new HashMap<>();
          for (String part : exchange.getRequestURI().getRawQuery().split("&")) {
            query.put(part.split("=")[0], URLDecoder.decode(part.split("=")[1], StandardCharsets.UTF_8));
          }
          resources.get(query.get("type")).remove(query.get("name"));
          changed(query.get("type"));
          break;
        case "POST /resume":
          resume();
          break;
        default:
          throw new IllegalArgumentException("not known here: " + call);
      }
    } catch (Exception error) {
      status = 400;
      answer = error.toString().getBytes(StandardCharsets.UTF_8);
    }
    exchange.sendResponseHeaders(status, answer.length == 0 ? -1 : answer.length);
    exchange.getResponseBody().write(answer);
    exchange.close();
  }

  /** Sets the resource that the proto3 JSON of an Any holds. */
  private void put(String json) throws IOException {
    Any.Builder packed = Any.newBuilder();
    parser.merge(json, packed);
    String type = packed.getTypeUrl();
    Message resource = SERVED.get(type).newBuilderForType().mergeFrom(packed.getValue()).build();
    resources.get(type).put(Resources.getResourceName(resource), resource);
    changed(type);
  }

  private void changed(String type) {
    versions.merge(type, 1, Integer::sum);
    publish();
  }

  private void publish() {
    cache.setSnapshot(EVERY_NODE, Snapshot.create(
        all(Cluster.class), version(Cluster.class),
        all(ClusterLoadAssignment.class), version(ClusterLoadAssignment.class),
        all(Listener.class), version(Listener.class),
        all(RouteConfiguration.class), version(RouteConfiguration.class),
        all(Secret.class), version(Secret.class)));
  }

  @SuppressWarnings("unchecked")
  private <T extends Message> Collection<T> all(Class<T> type) {
    return (Collection<T>) resources.get(url(type)).values();
  }

  private String version(Class<?> type) {
    return Integer.toString(versions.get(url(type)));
  }

  private static String url(Class<?> type) {
    return SERVED.entrySet().stream().filter(entry -> type.isInstance(entry.getValue())).findFirst().get().getKey();
  }
}
