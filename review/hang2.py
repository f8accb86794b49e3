# two clients with different parameters (locators), an origin that answers once, is cut, and then hangs
import grpc,sys,time,os,threading,queue,subprocess
from concurrent import futures
sys.path.insert(0,os.path.dirname(os.path.abspath(__file__))); from wire import *
PORT,RELAY=int(sys.argv[1]),int(sys.argv[2])
t0=time.time(); n=[0]
def log(*a): print(round(time.time()-t0,1),*a,flush=True)
class H(grpc.GenericRpcHandler):
    def service(self,d):
        if d.method.endswith('DeltaAggregatedResources'): return grpc.stream_stream_rpc_method_handler(self.delta)
    def delta(self,it,ctx):
        q=queue.Queue(); n[0]+=1; log('origin: stream',n[0]); mine=n[0]
        def read():
            first=True
            try:
                for r in it:
                    if first and mine==1:
                        first=False
                        def feed():
                            time.sleep(2); q.put(b''.join(f(2,f(8,f(1,'c0')+f(2,f(3,f(1,f(1,f(1,'v')+f(2,v))))))+f(1,'v1')+f(2,any_(CDS,f(1,'c0')))) for v in '12')+b''.join(f(2,f(8,f(1,'c1')+f(2,f(3,f(1,f(1,f(1,'v')+f(2,v))))))+f(1,'v1')+f(2,any_(CDS,f(1,'c1')))) for v in '12')+f(4,CDS)+f(5,'1')); time.sleep(12); q.put(None)
                        threading.Thread(target=feed,daemon=True).start()
            except Exception: pass
            q.put(None)
        threading.Thread(target=read,daemon=True).start()
        while True:
            x=q.get()
            if x is None: log('origin: end'); return
            yield x
s=grpc.server(futures.ThreadPoolExecutor(20)); s.add_generic_rpc_handlers((H(),)); s.add_insecure_port(f'127.0.0.1:{PORT}'); s.start()
cfg='/tmp/hang2.yaml'
open(cfg,'w').write(f'node: {{id: r}}\nupstream:\n  servers: [{{uri: "http://127.0.0.1:{PORT}"}}]\ndownstream:\n  listeners: [{{address: "127.0.0.1:{RELAY}"}}]\nadmin: {{address: "127.0.0.1:{RELAY+1}"}}\n')
p=subprocess.Popen(['target/debug/deltafan','serve','--config',cfg],stderr=open('/tmp/hang2.log','w'))
time.sleep(1)
def client(tag,first,method):
    ch=grpc.insecure_channel(f'127.0.0.1:{RELAY}',options=[('grpc.use_local_subchannel_pool',1)])
    m=ch.stream_stream('/envoy.service.discovery.v3.AggregatedDiscoveryService/'+method)
    q=queue.Queue()
    def gen():
        yield first
        while True: yield q.get()
    try:
        for r in m(gen()):
            pr=parse(r)
            if method.startswith('Delta'):
                log(tag,'resources',[dict(parse(v)).get(3,b'loc').decode() for k,v in pr if k==2],'removed',[v for k,v in pr if k in(6,8)])
                q.put(f(2,CDS)+f(6,dict(pr)[5]))
            else:
                log(tag,'full state of',len([1 for k,v in pr if k==2]),'clusters')
                q.put(f(1,dict(pr)[1])+f(4,CDS)+f(5,dict(pr)[5]))
    except Exception as e: log(tag,'closed',e.code(),e.details()[:90])
loc=lambda v: f(8,f(1,'*')+f(2,f(1,'v')+f(2,v)))
go=lambda *a: threading.Thread(target=client,args=a,daemon=True).start()
go('delta v=1',f(1,f(1,'c1'))+f(2,CDS)+loc('1'),'DeltaAggregatedResources')
go('delta v=2',f(1,f(1,'c2'))+f(2,CDS)+loc('2'),'DeltaAggregatedResources')
time.sleep(45); p.terminate(); os._exit(0)
